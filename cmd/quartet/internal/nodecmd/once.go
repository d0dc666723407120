package nodecmd

import (
	"cmp"
	"context"
	"errors"
	"io"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/cmd/quartet/internal/runonce"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
)

// runOnce runs the four services until the pods that are desired at the start run, or cannot run, and prints the result
// of each. It fails if one does not run, if a source has not answered, and as Run does.
func runOnce(ctx context.Context, opts Options, out, logs io.Writer) (err error) {
	l, err := layout.New(opts.StateDir)
	if err != nil {
		return err
	}
	cfg := runonce.Config{Clock: clock.RealClock{}, Progress: logs}
	address := cmp.Or(opts.Configmux.Address, l.Address(layout.ConfigMux))
	configmux, err := rpc.DialService(layout.ConfigMux, address, opts.Network.Files)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, configmux.Close()) }()
	syncloop, err := rpc.Dial(l.Address(layout.SyncLoop))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, syncloop.Close()) }()
	cfg.ConfigMux, cfg.SyncLoop = configmux, syncloop

	var results []runonce.Result
	var silent *runonce.UnansweredError
	done := errors.New("done")
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return Run(groupCtx, opts, logs) })
	group.Go(func() (err error) {
		if results, err = runonce.Run(groupCtx, cfg); err != nil && !errors.As(err, &silent) {
			return err
		}
		return done // this ends the services
	})
	if err := group.Wait(); !errors.Is(err, done) {
		return err
	}
	err = errors.Join(runonce.Print(out, results), runonce.Failed(results))
	if silent != nil {
		err = errors.Join(err, silent)
	}
	return err
}
