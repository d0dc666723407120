// Package kubeletcmd implements `quartet kubelet`, which is also the program's behavior if it is called kubelet: a node
// with the kubelet's command line and directories. It merges the kubelet's file, drop-ins and flags into one
// configuration file; package nodecmd runs the four services with it.
package kubeletcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/watchdog"
)

// Name is the name of the program that is this command.
const Name = "kubelet"

// stateDirName is the directory of the node's state, in the root directory.
const stateDirName = "quartet"

// anyAddress is the kubelet's default address of its API.
const anyAddress = "0.0.0.0"

const longHelp = `Run the node with the kubelet's command line: configmux, pleg, syncloop and nodestatus as child processes, instead of a
kubelet. A link named kubelet to quartet does the same.

The configuration is the file of --config with its defaults, the drop-ins of --config-dir merged over it, and the flags
over both. STATE/kubelet.yaml has the result while the node runs, and says where each field comes from.`

// Command is `quartet kubelet`.
func Command() *cobra.Command {
	opts := newOptions()
	cmd := &cobra.Command{
		Use:   Name,
		Short: "Run the four services with the kubelet's command line, instead of a kubelet",
		// The kubelet parses its own flags, and cobra's would conflict with them.
		DisableFlagParsing: true,
		SilenceUsage:       true,
		SilenceErrors:      true,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := newOptions()
			if err := opts.parse(args); err != nil {
				return err
			}
			switch {
			case opts.help:
				return cmd.Help()
			case opts.version != "":
				_, err := io.WriteString(cmd.OutOrStdout(), versionText(opts.version))
				return err
			}
			err := run(cmd.Context(), opts, cmd.ErrOrStderr())
			if errors.Is(err, os.ErrPermission) {
				err = fmt.Errorf("%w: run the command as root", err)
			}
			return err
		},
	}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { fmt.Fprint(cmd.OutOrStdout(), opts.usage()) })
	return cmd
}

// Called reports whether the program was called as the kubelet.
func Called(program string) bool { return filepath.Base(program) == Name }

// versionText returns the output of --version in the kubelet's form, which tools parse.
func versionText(version versionFlag) string {
	text := "Kubernetes " + buildinfo.Kubernetes() + "\n"
	if version == versionRaw {
		text += "Quartet " + buildinfo.Version() + "\n"
	}
	return text
}

// run runs the node until the context ends.
func run(ctx context.Context, opts *options, errOut io.Writer) error {
	merged, err := opts.configuration()
	if err != nil {
		return err
	}
	if names := opts.ineffective(); len(names) > 0 {
		slog.New(slog.NewTextHandler(errOut, nil)).
			Warn("these flags of the kubelet have no effect in Quartet", "flags", strings.Join(names, ", "))
	}
	node, err := opts.node(merged)
	if err != nil {
		return err
	}
	return nodecmd.Become(ctx, node, errOut)
}

// node returns the node command's options for the flags.
func (o *options) node(merged nodeconfig.Merged) (nodecmd.Options, error) {
	rootDir, err := filepath.Abs(o.rootDir)
	if err != nil {
		return nodecmd.Options{}, fmt.Errorf("--root-dir: %w", err)
	}
	stateDir := o.stateDir
	if stateDir == "" {
		stateDir = filepath.Join(rootDir, stateDirName)
	}
	certDir, err := filepath.Abs(o.certDir)
	if err != nil {
		return nodecmd.Options{}, fmt.Errorf("--cert-dir: %w", err)
	}
	l, err := layout.New(stateDir)
	if err != nil {
		return nodecmd.Options{}, err
	}
	return nodecmd.Options{
		ConfigFile:          l.ConfigFile(),
		Config:              merged.YAML,
		Kubeconfig:          o.kubeconfig,
		BootstrapKubeconfig: o.bootstrapKubeconfig,
		CertDir:             certDir,
		CloudProvider:       o.cloudProvider,
		RootDir:             rootDir,
		NodeFlags: nodecmd.NodeFlags{
			AllowedUIDs:      o.allowedUIDs,
			HostnameOverride: strings.TrimSpace(o.hostnameOverride),
			NodeIP:           o.nodeIP,
			NodeLabels:       o.nodeLabels.String(),
		},
		HostPrivileges:          o.hostPrivileges,
		CredentialProviders:     o.credentialProviders,
		AllowUnauthenticatedAPI: o.allowUnauthenticatedAPI,
		StateDir:                stateDir,
		StuckTimeout:            watchdog.DefaultPatience,
	}, nil
}

// Configuration returns the merged configuration of a command line.
func Configuration(args []string) (nodeconfig.Merged, error) {
	opts := newOptions()
	if err := opts.parse(args); err != nil {
		return nodeconfig.Merged{}, err
	}
	return opts.configuration()
}

// configuration reads the files and merges them with the flags.
func (o *options) configuration() (nodeconfig.Merged, error) {
	workDir, err := os.Getwd()
	if err != nil {
		return nodeconfig.Merged{}, fmt.Errorf("reading the working directory: %w", err)
	}
	sources := nodeconfig.Sources{
		WorkDir: workDir, Settings: o.settings(),
		Defaults: []nodeconfig.Setting{
			{Origin: "the kubelet's default", Field: "address", Value: anyAddress},
			{Origin: "the kubelet's default", Field: "readOnlyPort", Value: 0},
		},
	}
	if o.config != "" {
		file, err := read(o.config)
		if err != nil {
			return nodeconfig.Merged{}, fmt.Errorf("--config: %w", err)
		}
		sources.File = &file
	}
	if o.configDir != "" {
		if sources.DropIns, err = dropIns(o.configDir); err != nil {
			return nodeconfig.Merged{}, fmt.Errorf("--config-dir: %w", err)
		}
	}
	merged, errs := nodeconfig.Merge(sources)
	if len(errs) > 0 {
		return nodeconfig.Merged{}, nodeconfig.Errors(errs)
	}
	return merged, nil
}

// dropInExtension is the extension of drop-ins. Other files are skipped.
const dropInExtension = ".conf"

// dropIns reads the drop-ins of a directory and its subdirectories in lexical order. The result is not nil.
func dropIns(dir string) ([]nodeconfig.File, error) {
	files := []nodeconfig.File{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() || filepath.Ext(entry.Name()) != dropInExtension {
			return nil
		}
		file, err := read(path)
		if err != nil {
			return err
		}
		files = append(files, file)
		return nil
	})
	return files, err
}

// read reads a non-empty file of the configuration.
func read(path string) (nodeconfig.File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nodeconfig.File{}, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nodeconfig.File{}, err
	}
	if len(data) == 0 {
		return nodeconfig.File{}, fmt.Errorf("%s is empty: it must have a KubeletConfiguration", path)
	}
	return nodeconfig.File{Path: path, Data: data}, nil
}
