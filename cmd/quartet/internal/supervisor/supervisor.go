// Package supervisor keeps the processes of a node running: it starts each, gives its output a prefix, starts it again
// when it ends, slower when it keeps ending, and stops all of them when it is told to. Each is supervised for itself, so
// that one that keeps crashing never delays the return of another. It knows nothing of what the processes do; package
// nodecmd chooses them.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/thejerf/suture/v4"
)

const (
	// quickRestarts is how often a process is started again at once before the back-off begins. A process that was
	// killed by hand, even a few times in a row, is back within milliseconds.
	quickRestarts = 4
	// failureDecay is the half-life of the count of failures, in seconds.
	failureDecay = 30
	// backoff is the pause of a process that keeps ending; jitter of up to half of it is added.
	backoff = 5 * time.Second
)

// Service is something that should always run. Serve blocks until the context ends or the thing has failed; String names
// it for the log.
type Service interface {
	Serve(ctx context.Context) error
	String() string
}

// Config says what to run.
type Config struct {
	// Services are started together and supervised each for itself.
	Services []Service
	// Logger gets each end of a service with its reason.
	Logger *slog.Logger
	// StopTimeout is how long a service may take to end when the context has ended, its own killing included.
	StopTimeout time.Duration
	// Backoff is the pause of a service that keeps ending; zero means 5 s.
	Backoff time.Duration
}

// Run runs the services until the context ends and all of them have ended. A FinalError of one ends the others too, and is what Run
// returns. Otherwise its error names what would not end.
func Run(ctx context.Context, cfg Config) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if cfg.Backoff == 0 {
		cfg.Backoff = backoff
	}
	root := suture.New("quartet", suture.Spec{
		// The supervisors below take this hook over.
		EventHook: hook(cfg.Logger, cfg.Backoff),
		Timeout:   cfg.StopTimeout,
	})
	for _, service := range cfg.Services {
		each := suture.New(service.String(), suture.Spec{
			FailureThreshold: quickRestarts,
			FailureDecay:     failureDecay,
			FailureBackoff:   cfg.Backoff,
			Timeout:          cfg.StopTimeout,
		})
		each.Add(final{Service: service, end: end})
		root.Add(each)
	}
	if err := root.Serve(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("supervising: %w", err)
	}
	report, err := root.UnstoppedServiceReport()
	if err != nil {
		return fmt.Errorf("asking what has not ended: %w", err)
	}
	var errs []error
	if reason := (*FinalError)(nil); errors.As(context.Cause(ctx), &reason) {
		errs = append(errs, reason)
	}
	for _, unstopped := range report {
		errs = append(errs, fmt.Errorf("%s has not ended within %v", unstopped.Name, cfg.StopTimeout))
	}
	return errors.Join(errs...)
}

// final is a service whose FinalError ends all.
type final struct {
	Service
	end context.CancelCauseFunc
}

// Serve serves, and has nothing started again after a FinalError.
func (f final) Serve(ctx context.Context) error {
	err := f.Service.Serve(ctx)
	if reason := (*FinalError)(nil); errors.As(err, &reason) {
		f.end(err)
		return errors.Join(suture.ErrDoNotRestart, err)
	}
	return err
}

// hook logs what an operator must know: that a service has ended, why, and when it comes back.
func hook(logger *slog.Logger, backoff time.Duration) suture.EventHook {
	return func(event suture.Event) {
		switch e := event.(type) {
		case suture.EventServiceTerminate:
			if reason := (*FinalError)(nil); errors.As(asError(e.Err), &reason) {
				logger.Error("a process of the node cannot work with its configuration; the node ends", "process", e.ServiceName)
				return
			}
			next := "at once"
			if !e.Restarting {
				next = fmt.Sprintf("in about %v, because it keeps ending", backoff)
			}
			logger.Warn("a process of the node has ended and is started again",
				"process", e.ServiceName, "error", fmt.Sprint(e.Err), "again", next)
		case suture.EventServicePanic:
			logger.Error("supervising a process has panicked", "process", e.ServiceName, "panic", e.PanicMsg, "stack", e.Stacktrace)
		case suture.EventStopTimeout:
			logger.Error("a process of the node has not ended in time", "process", e.ServiceName)
		}
	}
}

func asError(reason any) error {
	err, ok := reason.(error)
	if !ok {
		return nil
	}
	return err
}
