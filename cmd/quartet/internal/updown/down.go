package updown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// stopPatience bounds the stop of the four services by their supervisor.
	stopPatience = 30 * time.Second
	// podGrace is the grace period of containers. syncloop, which handles the pods' own grace periods, has ended.
	podGrace = 10 * time.Second
)

type downOptions struct {
	stateDir string
	keepPods bool
}

// DownCommand is `quartet down`.
func DownCommand() *cobra.Command {
	var opts downOptions
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop what quartet up has started",
		Long: `Stop the four services, then every pod, then containerd, and remove the mounts and the network of the node from this
machine. The files in the state directory stay: the next quartet up runs the same manifests again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return down(cmd.Context(), opts, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().SortFlags = false
	target.AddFlag(cmd.Flags(), &opts.stateDir)
	cmd.Flags().
		BoolVar(&opts.keepPods, "keep-pods", false, "stop the four services only; containerd and the pods continue to run")
	return cmd
}

func down(ctx context.Context, opts downOptions, out, errOut io.Writer) error {
	l, err := layout.New(opts.stateDir)
	if err != nil {
		return err
	}
	p := progress{out: out}
	switch existed, err := hasNode(l); {
	case err != nil:
		return err
	case !existed:
		p.printf("There is no node in %s.\n", l.StateDir())
		return nil
	}
	if err := p.step("services", func() (string, error) { return stopServices(ctx, l, p) }); err != nil {
		return err
	}
	if opts.keepPods {
		p.printf("\ncontainerd and the pods continue to run; quartet up takes them over, quartet down stops them.\n")
		return nil
	}
	b := bundle.New(bundle.Config{
		Layout: l, Logger: slog.New(slog.NewTextHandler(errOut, nil)), Note: p.note,
	})
	return stopRuntime(ctx, b, l, p)
}

// hasNode reports whether a node runs, or has run, in the state directory: its lock is never removed. Other directories
// are not touched.
func hasNode(l layout.Layout) (bool, error) {
	for _, name := range lockNames() {
		_, err := os.Stat(lockFile(l, name))
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, os.ErrPermission):
			return false, fmt.Errorf("looking for a node: %w: run the command as root", err)
		case !errors.Is(err, os.ErrNotExist):
			return false, fmt.Errorf("looking for a node: %w: name a directory with --state-dir", err)
		}
	}
	return false, nil
}

// lockNames returns the locks of the supervisor and the four services, in the order of stopping.
func lockNames() []string {
	names := []string{nodecmd.Name}
	for _, s := range layout.Services() {
		names = append(names, string(s))
	}
	return names
}

// stopServices ends the supervisor, and remaining services. It identifies the processes by the locks that they hold,
// because a process ID in a file may be outdated, or that of another PID namespace.
func stopServices(ctx context.Context, l layout.Layout, p progress) (string, error) {
	stopped := "none ran"
	for _, name := range lockNames() {
		if _, err := os.Stat(lockFile(l, name)); errors.Is(err, os.ErrNotExist) {
			continue // it has never run, and on a read-only disk the lock could not be made
		}
		lock, err := statedir.Lock(l.StateDir(), name)
		var held *statedir.HeldError
		switch {
		case err == nil:
			// The file is for people, so that one that stays keeps nothing from being stopped.
			if err := removeStale(l.PIDFile(name)); err != nil {
				p.note(err.Error())
			}
			if err := lock.Release(); err != nil {
				return "", err
			}
		case errors.As(err, &held):
			if err := endHolder(ctx, held); err != nil {
				return "", fmt.Errorf("stopping %s: %w", name, err)
			}
			stopped = "stopped"
		default:
			return "", err
		}
	}
	return stopped, nil
}

// lockFile returns the path of a lock.
func lockFile(l layout.Layout, name string) string { return filepath.Join(l.StateDir(), name+".lock") }

// endHolder ends the process that holds a lock, and no other one.
func endHolder(ctx context.Context, held *statedir.HeldError) error {
	holder, err := held.Open()
	if errors.Is(err, process.ErrEnded) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(holder.End(ctx, stopPatience), holder.Close())
}

// removeStale removes the PID file of a killed process.
func removeStale(path string) error {
	err := statedir.Inform(func() error { return os.Remove(path) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("a PID file that is out of date stays: %w", err)
	}
	return nil
}

func stopRuntime(ctx context.Context, b *bundle.Bundle, l layout.Layout, p progress) error {
	running, err := b.Running()
	if err != nil {
		return err
	}
	if running {
		if err := p.step("pods", func() (string, error) {
			// A killed containerd is started again, because only it can end the pods gracefully.
			if err := b.Start(ctx); err != nil {
				p.note(fmt.Sprintf("cannot start containerd to stop the pods, killing them: %v", err))
				return "killed", nil
			}
			switch err := b.RemovePods(ctx, podGrace); {
			case err == nil:
				return "removed", nil
			case ctx.Err() != nil:
				return "", err
			case statedir.IsReadOnly(l.StateDir()):
				p.note(fmt.Sprintf("containerd cannot write that the pods end, killing them: %v", err))
			default:
				p.note(fmt.Sprintf("containerd cannot remove all pods, killing what is left: %v", err))
			}
			return "killed", nil
		}); err != nil {
			return err
		}
	}
	ended := "did not run"
	if running {
		ended = "stopped"
	}
	if err := p.step("containerd", func() (string, error) { return ended, b.Stop(ctx) }); err != nil {
		return err
	}
	if err := p.step("mounts and network", func() (string, error) { return "removed", b.CleanUp() }); err != nil {
		return err
	}
	p.printf("\nThe files of the node stay in %s; rm -r removes them.\n", l.StateDir())
	return nil
}
