// Package components runs the parts of a process side by side and closes what they use. A process constructs its parts
// from top to bottom, names each with [Group.Run], and registers what must be closed with [Group.OnClose] as soon as it
// exists; so what was constructed is closed in reverse order also when a later constructor fails.
package components

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// Group is the set of components of a process. Create it with New. It is used by one goroutine.
type Group struct {
	logger  *slog.Logger
	runs    []component
	closers []closer
}

type component struct {
	name string
	run  func(ctx context.Context) error
}

type closer struct {
	name  string
	close func() error
}

// New returns a group without components.
func New(logger *slog.Logger) *Group { return &Group{logger: logger} }

// Run adds a component. run returns with any error when ctx ends, or with nil when it has nothing more to do; the other
// components then continue. Another error ends all components.
func (g *Group) Run(name string, run func(ctx context.Context) error) {
	g.runs = append(g.runs, component{name: name, run: run})
}

// OnClose registers a function for [Group.Close].
func (g *Group) OnClose(name string, fn func() error) {
	g.closers = append(g.closers, closer{name: name, close: fn})
}

// Wait runs the components until ctx ends or one of them fails, and returns when all have ended. It returns nil after
// the end of ctx, and otherwise the first failure with the name of its component.
func (g *Group) Wait(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, c := range g.runs {
		group.Go(func() error {
			err := c.run(groupCtx)
			switch {
			case groupCtx.Err() != nil:
				return nil
			case err != nil:
				g.logger.Error("a component has failed; the process ends", telemetry.KeyComponent, c.name, telemetry.KeyError, err)
				return fmt.Errorf("%s: %w", c.name, err)
			}
			g.logger.Debug("a component has nothing more to do", telemetry.KeyComponent, c.name)
			return nil
		})
	}
	return group.Wait()
}

// Close calls the registered functions in reverse order and returns every error. A second call is a no-op.
func (g *Group) Close() error {
	var errs []error
	for _, c := range slices.Backward(g.closers) {
		if err := c.close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", c.name, err))
		}
	}
	g.closers = nil
	return errors.Join(errs...)
}
