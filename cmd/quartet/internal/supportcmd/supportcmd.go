// Package supportcmd implements `quartet support-bundle`: one archive with what helps to find out what is wrong with a
// node, and without secrets. It collects the output of other commands, the configuration, the command lines of the
// processes and the ends of their logs.
//
// It takes no manifests, no environment and no content of config maps and secrets at all. The values of secrets and of
// the environment of pods, and the credentials of kubeconfigs, are read all the same, to remove them wherever they
// occur, for example in the message of a probe. What looks like a credential is removed, too.
package supportcmd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// fileMode lets only the owner read the bundle and the files in it.
	fileMode = 0o600
	// commandTimeout bounds a command whose output is collected. quartet doctor has checks of 5 s each.
	commandTimeout = time.Minute
)

// options holds the flags.
type options struct {
	stateDir, config, output string
}

// collector collects the files of a bundle.
type collector struct {
	layout layout.Layout
	// config is the file of --config; empty without.
	config string
	// root returns the whole command line, whose commands are called.
	root  func() *cobra.Command
	scrub *scrubber
	now   time.Time
	files []file
	// gaps are the values that are known by their form only, because they could not be had.
	gaps []string
}

// file is a file of the bundle.
type file struct {
	name    string
	content []byte
}

// Command is `quartet support-bundle`. root returns the whole command line.
func Command(root func() *cobra.Command) *cobra.Command {
	var opts options
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Write an archive with what helps to find out what is wrong with the node, without secrets",
		Long: `Write a tar.gz with versions, the state of the node and its pods, the configuration, flags, health, metrics,
goroutines and the ends of the logs of the four processes, and the output of quartet doctor. A process that does not
run or answer is named in its files.

It has no manifests, no environment, no config maps and no secrets. Tokens, keys, passwords, and the values of secrets
and of the environment of pods are removed from all texts. Names of pods, images, addresses and paths stay, so look
through it before you send it.

It reads files and processes of the machine on which it runs: run it on the node. The state of a node elsewhere can be
had with 'quartet get', 'quartet describe' and 'quartet debug', which take addresses.`,
		Example: "  quartet support-bundle\n  quartet support-bundle -o /tmp/node.tar.gz",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return opts.run(cmd, root) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&opts.output, "output", "o", "",
		"`FILE` to write; - is standard output (default: quartet-support-TIME.tar.gz in this directory)")
	flags.StringVar(&opts.config, "config", "",
		"`FILE` with the node's KubeletConfiguration (default: those of the running processes, and of quartet up)")
	target.AddFlag(flags, &opts.stateDir)
	return cmd
}

func (o *options) run(cmd *cobra.Command, root func() *cobra.Command) error {
	l, err := layout.New(o.stateDir)
	if err != nil {
		return err
	}
	if o.config != "" {
		if _, err := os.Stat(o.config); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	c := &collector{layout: l, config: o.config, root: root, now: time.Now()}
	c.collect(cmd.Context())
	if cmd.Context().Err() != nil {
		return errors.New("interrupted: no bundle was written")
	}
	if _, err := cmd.ErrOrStderr().Write(c.warning()); err != nil {
		return err
	}
	if o.output == "-" {
		return c.write(cmd.OutOrStdout())
	}
	path := o.output
	if path == "" {
		path = "quartet-support-" + c.now.Format("20060102T150405") + ".tar.gz"
	}
	if err := c.writeFile(path); err != nil {
		return err
	}
	removal := "Secrets are removed"
	if len(c.gaps) > 0 {
		removal = "Only secrets of typical forms are removed"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s has %d files. %s; look through it before you send it.\n",
		path, len(c.files), removal)
	return err
}

// warning says what could not be had, so that values of it may be in the bundle; nothing without a gap.
func (c *collector) warning() []byte {
	if len(c.gaps) == 0 {
		return nil
	}
	text := "Warning: the bundle may have values of secrets and of the environment of pods, because they are not known:\n"
	for _, gap := range c.gaps {
		text += "  - " + gap + "\n"
	}
	text += "Only what looks like a token, a key or a password is removed. Run the command again when the processes answer, " +
		"or read every file before you send it.\n"
	return c.scrub.scrub([]byte(text))
}

// readme returns the text that says what the bundle is.
func (c *collector) readme() []byte {
	text := "An archive of quartet support-bundle: what helps to find out what is wrong with a node.\n" +
		"It has no manifests, environment, config maps, secrets or kubeconfigs.\n"
	if len(c.gaps) == 0 {
		return []byte(text + "Values of secrets, and of the environment of pods, are removed from all texts.\n")
	}
	return append([]byte(text+"\n"), c.warning()...)
}

// commands are the commands whose output is collected, by file.
var commands = []struct {
	file, args string
	// everywhere is set for a command without --state-dir.
	everywhere bool
}{
	{file: "version.txt", args: "version", everywhere: true},
	{file: "status/pods.txt", args: "get pods -o wide"},
	{file: "status/workers.txt", args: "get workers -o wide"},
	{file: "status/volumes.txt", args: "get volumes -o wide"},
	{file: "status/claims.txt", args: "get pvc"},
	{file: "status/images.txt", args: "get images -o wide"},
	{file: "status/sources.txt", args: "get sources"},
	{file: "status/node.txt", args: "get node -o wide"},
	{file: "status/node-details.txt", args: "describe node"},
	{file: "status/events.txt", args: "events"},
	{file: "metrics.txt", args: "metrics"},
}

// collect collects all files. A file that cannot be had contains why.
func (c *collector) collect(ctx context.Context) {
	processes := c.processes()
	c.scrub = newScrubber(append(c.secretsOfFiles(processes), c.secretsOfPods(ctx)...))
	c.text("README.txt", c.readme())
	for _, command := range commands {
		args := strings.Fields(command.args)
		if !command.everywhere {
			args = append(args, "--state-dir", c.layout.StateDir())
		}
		c.command(ctx, command.file, args...)
	}
	doctor := []string{"doctor", "--state-dir", c.layout.StateDir()}
	if c.config != "" {
		doctor = append(doctor, "--config", c.config)
	}
	c.command(ctx, "doctor.txt", doctor...)
	for _, service := range layout.Services() {
		dir := "processes/" + string(service) + "/"
		c.text(dir+"health.txt", c.health(ctx, service))
		c.text(dir+"process.txt", processes[service].describe())
		for _, what := range []string{"log-level", "goroutines"} {
			c.command(ctx, dir+what+".txt", "debug", string(service), what, "--state-dir", c.layout.StateDir())
		}
	}
	c.configurations(processes)
	c.logs()
	c.text("files.txt", c.listing())
}

// text adds a file of text, without secrets.
func (c *collector) text(name string, content []byte) {
	c.files = append(c.files, file{name, c.scrub.scrub(content)})
}

// command adds the output of a command of this command line, with its error at the end.
func (c *collector) command(ctx context.Context, name string, args ...string) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var out bytes.Buffer
	cmd := c.root()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(&out, "\nquartet %s: %v\n", strings.Join(args, " "), err)
	}
	c.text(name, out.Bytes())
}

// writeFile writes the bundle, as a whole or not at all.
func (c *collector) writeFile(path string) (err error) {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".quartet-support-*") // its mode is fileMode
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary.Name()) // err says why there is no bundle
		}
	}()
	if err := errors.Join(c.write(temporary), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// write writes the bundle.
func (c *collector) write(to io.Writer) error {
	compressed := gzip.NewWriter(to)
	archive := tar.NewWriter(compressed)
	for _, f := range c.files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: "quartet-support/" + f.name, Mode: fileMode, Size: int64(len(f.content)),
			ModTime: c.now,
		}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
		if _, err := archive.Write(f.content); err != nil {
			return fmt.Errorf("write the bundle: %w", err)
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}
