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

// listEvents prints what has happened. When a service does not answer, what the others have is printed before the command fails, with a
// line for each that is missing.
func (a *asker) listEvents(cmd *cobra.Command, p *eventPrinter, s *eventSelection) error {
	witnesses := a.witnesses(s)
	lists, errs := make([][]happening, len(witnesses)), make([]error, len(witnesses))
	var asked sync.WaitGroup
	for i, witness := range witnesses {
		asked.Go(func() { lists[i], errs[i] = witness.list(cmd.Context()) })
	}
	asked.Wait()
	all := slices.Concat(lists...)
	missing := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(missing) == len(witnesses) {
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

// watchEvents prints what has happened, and then everything that does. Of a service that is away a line says so, and what it has is
// printed when it is there. It fails when none is.
func (a *asker) watchEvents(cmd *cobra.Command, p *eventPrinter, s *eventSelection) error {
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	witnesses := a.witnesses(s)
	there, err := a.reachable(ctx, witnesses)
	if len(there) == 0 {
		return err
	}
	w := &eventWatch{printer: p, errOut: cmd.ErrOrStderr(), only: s.only, fail: fail, awaited: there, left: len(witnesses), all: make(chan struct{})}
	group, ctx := errgroup.WithContext(ctx)
	for _, witness := range witnesses {
		group.Go(func() error {
			err := witness.follow(ctx, cmd, w.tell, func() { w.synced(witness.service) })
			if err == nil || ctx.Err() != nil {
				return err
			}
			return w.lost(witness.service, err)
		})
	}
	group.Go(func() error {
		// A service that hangs does not keep what the others have to say.
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

// reachable are those of some services that take connections; the error says why the first one does not.
func (a *asker) reachable(ctx context.Context, witnesses []witness) (there []layout.Service, away error) {
	for _, witness := range witnesses {
		conn, err := a.connect(ctx, witness.service)
		if err == nil {
			err = conn.Close()
			there = append(there, witness.service)
		}
		away = cmp.Or(away, err)
	}
	return there, away
}

// eventWatch puts what several services tell into one row: what each has at first is kept until all have told it, so that it
// can be told in the order in which it happened.
type eventWatch struct {
	printer *eventPrinter
	errOut  io.Writer
	only    func([]happening) []happening
	fail    func(error)
	// all is closed when what was kept is printed.
	all chan struct{}

	mu sync.Mutex
	// awaited are the services that were there at first and of which not all is known that there was, left is how many go on to tell.
	awaited []layout.Service
	left    int
	kept    []happening
	// told is true when what was kept is printed.
	told bool
}

// lost notes that a service will tell nothing, and why, as one of an older version: the command fails of that when it was the last.
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

// tell prints what has happened, or keeps it.
func (w *eventWatch) tell(all ...happening) {
	all = w.only(all)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.told {
		w.kept = append(w.kept, all...)
		return
	}
	if err := w.printer.print(all...); err != nil {
		w.fail(err)
	}
}

// synced notes that a service has told what it has.
func (w *eventWatch) synced(service layout.Service) {
	w.mu.Lock()
	w.awaited = slices.DeleteFunc(w.awaited, func(s layout.Service) bool { return s == service })
	last := len(w.awaited) == 0
	w.mu.Unlock()
	if last {
		w.release()
	}
}

// release prints what was kept.
func (w *eventWatch) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told {
		return
	}
	w.told = true
	sortByTime(w.kept)
	if err := w.printer.print(w.kept...); err != nil {
		w.fail(err)
	}
	w.kept = nil
	close(w.all)
}
