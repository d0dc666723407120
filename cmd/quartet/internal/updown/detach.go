package updown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"github.com/quartet-node/quartet/internal/gosettings"
	"github.com/quartet-node/quartet/internal/logfile"
	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/internal/statedir"
)

// logTail is the number of bytes of a log in an error.
const logTail = 4096

// detached prepares the node in this process, with visible progress, starts the same command again as a session of its
// own, and returns when the node is ready. It only waits for a node that already runs.
func (n *node) detached(ctx context.Context) error {
	err := n.prepare(ctx)
	var held *statedir.HeldError
	switch {
	case errors.As(err, &held):
		n.progress.note(
			fmt.Sprintf(
				"the node already runs, pid %d; quartet down%s --keep-pods stops it without its pods, so that a new build can take over",
				held.Holder.PID,
				stateDirFlag(n.layout),
			),
		)
		if err := n.waitHealthy(ctx); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := n.launch(ctx); err != nil {
			return err
		}
	}
	n.farewell("Logs are in " + n.logFile() + "; quartet down" + stateDirFlag(n.layout) + " stops everything")
	return nil
}

// launch starts the background process and waits until the node is ready, or that process has ended.
func (n *node) launch(ctx context.Context) error {
	log, err := logfile.Open(n.logFile())
	if err != nil {
		return err
	}
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	exe, err := os.Executable()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	cmd := exec.Command(exe, n.foregroundArgs()...)
	cmd.Env = gosettings.ChildEnv(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		return fmt.Errorf("starting the node in the background: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := process.Wait(ctx, cmd.Process.Pid); err != nil {
			cancel(err)
			return
		}
		if ctx.Err() == nil {
			cancel(fmt.Errorf("the node (pid %d) has ended; its log says:\n%s", cmd.Process.Pid, tail(n.logFile(), begin)))
		}
	}()
	err = n.waitHealthy(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	} else if err != nil {
		err = fmt.Errorf("%w; the end of %s:\n%s", err, n.logFile(), tail(n.logFile(), begin))
	}
	cancel(nil)
	<-watched
	return errors.Join(err, cmd.Process.Release())
}

// foregroundArgs returns the arguments of the same command in the foreground.
func (n *node) foregroundArgs() []string {
	args := []string{
		"up", "--state-dir=" + n.layout.StateDir(), "--manifests=" + n.opts.manifests, "--kubeconfig=" + n.opts.kubeconfig,
		"--bootstrap-kubeconfig=" + n.opts.bootstrapKubeconfig,
		"--config=" + n.opts.config, "--pod-cidr=" + n.opts.podCIDR,
		"--read-only-port=" + strconv.Itoa(int(n.opts.readOnlyPort)),
	}
	if n.opts.healthzPortGiven {
		args = append(args, "--"+healthzPortFlag+"="+strconv.Itoa(int(n.opts.healthzPort)))
	}
	return slices.Concat(args, n.opts.node.Args(), n.opts.log.Args(), n.opts.programs.Args(), n.opts.hostPrivileges.Args(),
		n.opts.credentialProviders.Args(), n.opts.configmux.Args(), n.opts.network.Args())
}

// tail returns the end of a log after an offset.
func tail(path string, since int64) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	content = content[min(since, int64(len(content))):]
	return string(content[max(0, len(content)-logTail):])
}
