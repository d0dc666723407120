package doctor

import (
	"context"
	"errors"
	"time"

	"github.com/quartet-node/quartet/internal/machine"
)

const (
	// checkTimeout is how long one check may take: everything is on this machine, and what hangs is a finding.
	checkTimeout = 5 * time.Second
	// atOnce bounds how many checks run at a time; most of them read one file.
	atOnce = 8
)

// check looks at one thing. run returns a finding or more, the more important ones first, and none when there is nothing
// to say of it.
type check struct {
	name string
	run  func(context.Context) []machine.Finding
}

// one makes a check of a function that always finds one thing.
func one(name string, find func() machine.Finding) check {
	return check{name: name, run: func(context.Context) []machine.Finding { return []machine.Finding{find()} }}
}

// runner runs checks.
type runner struct {
	// timeout is how long one check may take.
	timeout time.Duration
	// atOnce is how many run at a time.
	atOnce int
}

// run runs all checks and hands on their findings in the order of the checks, each as soon as it and all before it are
// there. A check that does not end in time becomes a fault and is left behind: a call that waits for a dead disk cannot
// be interrupted, and ends with the process. The error is that of show, or of the context.
func (r runner) run(ctx context.Context, checks []check, show func([]machine.Finding) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	free := make(chan struct{}, r.atOnce)
	results := make([]chan []machine.Finding, len(checks))
	for i := range checks {
		results[i] = make(chan []machine.Finding, 1) // so that whoever runs it never waits for us
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

// bounded runs one check for as long as it may take.
func (r runner) bounded(ctx context.Context, c check) []machine.Finding {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	result := make(chan []machine.Finding, 1) // so that a late answer is dropped
	go func() { result <- c.run(ctx) }()
	select {
	case findings := <-result:
		return findings
	case <-ctx.Done():
	}
	// An answer that came with the end of the time says more than that it is over.
	grace := time.NewTimer(r.timeout / 10)
	defer grace.Stop()
	select {
	case findings := <-result:
		return findings
	case <-grace.C:
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		return []machine.Finding{{
			Check: c.name, Level: machine.Fault, Detail: "no answer within " + r.timeout.String(),
			Fix: "look for what hangs: a disk or network file system that is away ('dmesg', 'mount'), or the process that was asked",
		}}
	}
}
