// Package runtimecmd implements `quartet runtime`: the bundled containerd in the foreground, for a node whose services
// are separate containers or units.
package runtimecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/hostns"
	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// lockName is the name of this command's lock in the state directory.
	lockName = "runtime"
	// restartPause is the pause before an ended containerd is restarted.
	restartPause = time.Second
	// podGrace is the grace period of containers.
	podGrace = 10 * time.Second
	// stopPatience bounds the whole stop; deploy/compose gives the container the same time.
	stopPatience = time.Minute
)

// Command is `quartet runtime`.
func Command() *cobra.Command {
	var stateDir, podCIDR, config, socketDir string
	var enterHost bool
	cmd := &cobra.Command{
		Use:   "runtime",
		Short: "Run the bundled containerd in the foreground",
		Long: `Run containerd, runc and the CNI plugins that the build made, and nothing else of a node. A containerd that ends is
started again, and no pod notices. SIGTERM and Ctrl-C end the pods, then containerd, and take its mounts and network off
this machine: a machine that is switched off does the same.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := layout.New(stateDir)
			if err != nil {
				return err
			}
			if socketDir != "" {
				if l, err = l.WithRuntimeSockets(socketDir); err != nil {
					return fmt.Errorf("--socket-dir: %w", err)
				}
			}
			network, err := bundle.PodNetwork(podCIDR, config)
			if err != nil {
				return err
			}
			if enterHost {
				return moveToHost(l, network)
			}
			return run(cmd.Context(), l, network, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().SortFlags = false
	target.AddFlag(cmd.Flags(), &stateDir)
	cmd.Flags().
		StringVar(&podCIDR, "pod-cidr", "", "`network` that pods get their IPv4 addresses from, instead of podCIDR of --config; a free private one is chosen when both are empty")
	cmd.Flags().StringVar(&config, "config", "", "`file` with the node's KubeletConfiguration, of which podCIDR is read")
	cmd.Flags().StringVar(&socketDir, "socket-dir", "",
		"`directory` of containerd's sockets, as an absolute path; that of the services' sockets when empty")
	cmd.Flags().
		BoolVar(&enterHost, "enter-host", false, "for a container with pid: host: put the runtime's files on the machine and run it there")
	return cmd
}

// moveToHost copies the files of the image to the machine and continues there with the same process.
func moveToHost(l layout.Layout, network netip.Prefix) error {
	dist := l.RuntimeDist()
	if err := unpack(imageFiles(), hostns.Path(dist)); err != nil {
		return fmt.Errorf("putting the runtime's files into %s: %w", dist, err)
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "PATH=") })
	args := []string{"quartet", "runtime", "--state-dir", l.StateDir(), "--socket-dir", l.RuntimeSocketDir()}
	if network.IsValid() {
		args = append(args, "--pod-cidr", network.String())
	}
	return hostns.Exec(filepath.Join(dist, "quartet"), args, append(env, "PATH="+hostPath))
}

// hostPath is the PATH of the machine's programs, including iptables, because that of an image does not apply there.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func run(ctx context.Context, l layout.Layout, network netip.Prefix, errOut io.Writer) (err error) {
	logger := slog.New(slog.NewTextHandler(errOut, nil)).With("service", "containerd")
	binDir, err := nodecmd.BinDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.StateDir(), 0o711); err != nil { //nolint:gosec // what is in it has modes of its own
		return fmt.Errorf("making the state directory: %w", err)
	}
	lock, err := statedir.Lock(l.StateDir(), lockName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	b := bundle.New(bundle.Config{
		Layout: l, BinDir: binDir, PodNetwork: network, Logger: logger, Note: func(note string) { logger.Warn(note) },
	})
	if err := b.Prepare(); err != nil {
		return err
	}
	err = keepRunning(ctx, b, l, logger)
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	return errors.Join(err, stop(stopCtx, b, l, logger))
}

// keepRunning starts containerd whenever it does not run, until ctx ends. It fails if the first start fails, because a
// second would too.
func keepRunning(ctx context.Context, b *bundle.Bundle, l layout.Layout, logger *slog.Logger) error {
	for started := false; ; {
		err := b.Start(ctx)
		if err == nil && !started {
			err = b.ImportImages(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !started:
			return err
		case err == nil:
			started = true
			logger.Info("serving", "socket", l.RuntimeSocket(), "pid", b.PID(), "log", b.LogFile())
			err = b.Wait(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		logger.Warn("starting containerd again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
	}
}

// stop ends the pods and containerd. It keeps the sockets and the mount of the state directory if services still run,
// because then only this container is restarted.
func stop(ctx context.Context, b *bundle.Bundle, l layout.Layout, logger *slog.Logger) error {
	logger.Info("ending the pods, then containerd")
	if err := b.Start(ctx); err != nil {
		logger.Warn("containerd cannot be started to end the pods, they are killed", "error", err)
	} else if err := b.RemovePods(ctx, podGrace); err != nil {
		logger.Warn("a pod did not end, it is killed", "error", err)
	}
	if err := b.Stop(ctx); err != nil {
		return err
	}
	if servicesRun(l) {
		return b.CleanUpRuntime()
	}
	return b.CleanUp()
}

// servicesRun reports whether one of the four services listens on its socket.
func servicesRun(l layout.Layout) bool {
	for _, service := range layout.Services() {
		conn, err := net.Dial("unix", l.Socket(service))
		if err != nil {
			continue
		}
		_ = conn.Close() // the connection was only a test
		return true
	}
	return false
}
