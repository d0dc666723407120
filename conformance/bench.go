package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// defaultPatience is Part.Patience if that is 0.
	defaultPatience = 30 * time.Second
	// pollInterval is the time between two checks of a condition.
	pollInterval = 20 * time.Millisecond
)

// bench is what the check of one rule works with.
type bench struct {
	part     Part
	rule     string
	patience time.Duration
	// cleanups restore the state before the check, the last one first.
	cleanups []func(context.Context) error
}

func newBench(part Part, rule string) *bench {
	return &bench{part: part, rule: rule, patience: cmp.Or(part.Patience, defaultPatience)}
}

// run runs a check, and cleans up after it.
func (b *bench) run(ctx context.Context, check func(context.Context, *bench) error) error {
	limited, cancel := context.WithTimeout(ctx, 4*b.patience)
	defer cancel()
	err := check(limited, b)
	cleaning, stop := context.WithTimeout(context.WithoutCancel(ctx), b.patience)
	defer stop()
	for i := len(b.cleanups) - 1; i >= 0; i-- {
		if cleanErr := b.cleanups[i](cleaning); cleanErr != nil {
			err = errors.Join(err, fmt.Errorf("cleaning up: %w", cleanErr))
		}
	}
	return err
}

// cleanup registers what is to be done after the check.
func (b *bench) cleanup(undo func(context.Context) error) { b.cleanups = append(b.cleanups, undo) }

// eventually waits until a condition holds. The condition returns nil, or what is missing.
func (b *bench) eventually(ctx context.Context, holds func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := holds(limited)
		if err == nil {
			return nil
		}
		select {
		case <-limited.Done():
			return fmt.Errorf("still after %v: %w", b.patience, err)
		case <-tick.C:
		}
	}
}

// needsRestart skips a rule if the part cannot be restarted.
func (b *bench) needsRestart() error {
	if b.part.Restart == nil {
		return skip("it needs a restart of the part: name its command after --")
	}
	return nil
}

// wantCode returns an error unless err has the code.
func wantCode(what string, err error, want codes.Code) error {
	if got := status.Code(err); got != want {
		return fmt.Errorf("%s: got the code %v (%w), want %v", what, got, orNothing(err), want)
	}
	return nil
}

var errNothing = errors.New("no error")

func orNothing(err error) error {
	if err == nil {
		return errNothing
	}
	return err
}

// ready makes a call wait for a connection.
func ready() grpc.CallOption { return grpc.WaitForReady(true) }
