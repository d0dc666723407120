package updown

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
)

const (
	// healthTimeout bounds each wait of a start: a service serves within a second, and the node is ready within a few.
	healthTimeout = time.Minute
	// healthInterval is the polling interval.
	healthInterval = 50 * time.Millisecond
	// askTimeout bounds one query, so that a hanging service counts as not serving.
	askTimeout = 2 * time.Second
)

// waitHealthy waits until each service serves and the node is Ready. It notes what the node is short of, because pods
// that have just been started are evicted for it.
func (n *node) waitHealthy(ctx context.Context) error {
	for _, service := range n.opts.configmux.Services() {
		address := n.layout.Address(service)
		if err := n.progress.step(string(service), func() (string, error) {
			return address, poll(ctx, address, target.Serving)
		}); err != nil {
			return err
		}
	}
	var pressures []string
	if err := n.progress.step("node", func() (string, error) {
		return "Ready", poll(
			ctx,
			n.layout.Address(layout.NodeStatus),
			func(ctx context.Context, conn grpc.ClientConnInterface) error {
				if err := target.NodeReady(ctx, conn); err != nil {
					return err
				}
				var err error
				pressures, err = target.Pressures(ctx, conn)
				return err
			},
		)
	}); err != nil {
		return err
	}
	for _, pressure := range pressures {
		n.progress.note(pressure + "; pods may be evicted: free some, or set evictionHard in a file for --config")
	}
	return nil
}

// poll queries until the answer is nil. Its error is the last answer.
func poll(ctx context.Context, address string, ask func(context.Context, grpc.ClientConnInterface) error) (err error) {
	conn, err := rpc.Dial(address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		askCtx, done := context.WithTimeout(ctx, askTimeout)
		err := ask(askCtx, conn)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}
