package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/quartet-node/quartet/internal/machine"
)

const (
	// checkTimeout bounds one check: everything is on this machine, and a hanging part is a finding.
	checkTimeout = 5 * time.Second
	// atOnce bounds the number of concurrent checks; most of them read one file.
	atOnce = 8
)

// check is one check. run returns its findings, the most important ones first, or none.
type check struct {
	name string
	run  func(context.Context) []machine.Finding
}

// one returns the check of a function with exactly one finding.
func one(name string, find func() machine.Finding) check {
	return check{name: name, run: func(context.Context) []machine.Finding { return []machine.Finding{find()} }}
}

// runner runs checks.
type runner struct {
	// timeout bounds one check.
	timeout time.Duration
	// atOnce is the maximum number of concurrent checks.
	atOnce int
}

// run runs all checks and passes their findings to show in the order of the checks, as soon as possible. A check that
// does not end in time becomes a fault and is abandoned, because a call that waits for a dead disk cannot be
// interrupted; it ends with the process. The error is that of show, or of the context.
func (r runner) run(ctx context.Context, checks []check, show func([]machine.Finding) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	free := make(chan struct{}, r.atOnce)
	results := make([]chan []machine.Finding, len(checks))
	for i := range checks {
		results[i] = make(chan []machine.Finding, 1) // buffered, so that the sender never blocks
	}
	go func() {
		for i, c := range checks {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
				return
			}
			go func() {
				defer func() { <-free }()
				results[i] <- r.bounded(ctx, c)
			}()
		}
	}()
	for _, result := range results {
		select {
		case findings := <-result:
			if err := show(findings); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// bounded runs one check with its timeout.
func (r runner) bounded(ctx context.Context, c check) []machine.Finding {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	result := make(chan []machine.Finding, 1) // buffered, so that a late result is dropped
	go func() { result <- c.run(ctx) }()
	select {
	case findings := <-result:
		return findings
	case <-ctx.Done():
	}
	// A result that arrives with the timeout says more than the timeout.
	grace := time.NewTimer(r.timeout / 10)
	defer grace.Stop()
	select {
	case findings := <-result:
		return findings
	case <-grace.C:
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		return []machine.Finding{
			{
				Check:  c.name,
				Level:  machine.Fault,
				Detail: "no answer within " + r.timeout.String(),
				Fix:    "look for what hangs: a disk or network file system that is away ('dmesg', 'mount'), or the process that was asked",
			},
		}
	}
}
