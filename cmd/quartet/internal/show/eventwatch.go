package show

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/quartet-node/quartet/internal/layout"
)

// listEvents prints past events. If a service does not answer, it prints the events of the others, and a line for each
// missing service, before it fails.
func (a *querier) listEvents(cmd *cobra.Command, p *eventPrinter, s *eventSelection) error {
	sources := a.eventServices(s)
	lists, errs := make([][]happening, len(sources)), make([]error, len(sources))
	var listers sync.WaitGroup
	for i, source := range sources {
		listers.Go(func() { lists[i], errs[i] = source.list(cmd.Context()) })
	}
	listers.Wait()
	all := slices.Concat(lists...)
	missing := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(missing) == len(sources) {
		missing = missing[:1] // the node does not run
	}
	all = s.only(all)
	sortByTime(all)
	if len(all) == 0 && len(missing) == 0 && !p.json {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "There are no events.")
		return err
	}
	return errors.Join(append([]error{p.print(all...)}, missing...)...)
}

// watchEvents prints past events, and then further ones. It reports an unreachable service in a line, and prints its
// events when it answers. It fails if no service is reachable.
func (a *querier) watchEvents(cmd *cobra.Command, p *eventPrinter, s *eventSelection) error {
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	sources := a.eventServices(s)
	reachable, err := a.reachable(ctx, sources)
	if len(reachable) == 0 {
		return err
	}
	w := &eventWatch{
		printer: p,
		errOut:  cmd.ErrOrStderr(),
		only:    s.only,
		fail:    fail,
		awaited: reachable,
		left:    len(sources),
		all:     make(chan struct{}),
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, source := range sources {
		group.Go(func() error {
			err := source.follow(ctx, cmd, w.add, func() { w.synced(source.service) })
			if err == nil || ctx.Err() != nil {
				return err
			}
			return w.lost(source.service, err)
		})
	}
	group.Go(func() error {
		// A hanging service does not delay the events of others.
		timer := a.clock.NewTimer(callTimeout)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-w.all:
		case <-timer.C():
			w.release()
		}
		return nil
	})
	return group.Wait()
}

// reachable returns the services that accept connections, and the error of the first one that does not.
func (a *querier) reachable(ctx context.Context, sources []eventService) (reachable []layout.Service, firstErr error) {
	for _, source := range sources {
		conn, err := a.connect(ctx, source.service)
		if err == nil {
			err = conn.Close()
			reachable = append(reachable, source.service)
		}
		firstErr = cmp.Or(firstErr, err)
	}
	return reachable, firstErr
}

// eventWatch merges the events of several services: it collects the past events of all of them to print them in the
// order of time.
type eventWatch struct {
	printer *eventPrinter
	errOut  io.Writer
	only    func([]happening) []happening
	fail    func(error)
	// all is closed when the collected events are printed.
	all chan struct{}

	mu sync.Mutex
	// awaited are the reachable services whose past events are incomplete, and left is the number of services that
	// continue.
	awaited []layout.Service
	left    int
	kept    []happening
	// released is true when the collected events are printed.
	released bool
}

// lost records that a service has no events, and why, for example because it is an older version. The command fails if
// it was the last one.
func (w *eventWatch) lost(service layout.Service, why error) error {
	w.mu.Lock()
	w.left--
	last := w.left == 0
	w.mu.Unlock()
	if last {
		return why
	}
	w.synced(service)
	_, err := fmt.Fprintf(w.errOut, "no events of %s: %v\n", service, why)
	return err
}

// add prints or collects events.
func (w *eventWatch) add(all ...happening) {
	all = w.only(all)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.released {
		w.kept = append(w.kept, all...)
		return
	}
	if err := w.printer.print(all...); err != nil {
		w.fail(err)
	}
}

// synced records that a service has sent its past events.
func (w *eventWatch) synced(service layout.Service) {
	w.mu.Lock()
	w.awaited = slices.DeleteFunc(w.awaited, func(s layout.Service) bool { return s == service })
	last := len(w.awaited) == 0
	w.mu.Unlock()
	if last {
		w.release()
	}
}

// release prints the collected events.
func (w *eventWatch) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released {
		return
	}
	w.released = true
	sortByTime(w.kept)
	if err := w.printer.print(w.kept...); err != nil {
		w.fail(err)
	}
	w.kept = nil
	close(w.all)
}
