// Package supervisor keeps the processes of a node running: it starts each, prefixes its output, restarts it with a
// back-off when it ends, and stops all of them on request. Each is supervised separately, so that a crash loop does not
// delay the restart of another. Package nodecmd chooses the processes.
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
	// quickRestarts is the number of immediate restarts before the back-off begins, so that a process that was killed by
	// hand is back within milliseconds.
	quickRestarts = 4
	// failureDecay is the half-life of the failure count in seconds.
	failureDecay = 30
	// backoff is the pause before a restart in a crash loop, extended by a jitter of up to half of it.
	backoff = 5 * time.Second
)

// Service is a supervised component. Serve blocks until the context ends or the component has failed; String returns
// its name for the log.
type Service interface {
	Serve(ctx context.Context) error
	String() string
}

// Config holds the parameters of Run.
type Config struct {
	// Services are started together and supervised separately. Those that are a *Process start in order.
	Services []Service
	// Logger logs each end of a service with its reason.
	Logger *slog.Logger
	// StopTimeout bounds the stop of a service, including its kill.
	StopTimeout time.Duration
	// Backoff is the pause before a restart in a crash loop; zero means 5 s.
	Backoff time.Duration
}

// Run runs the services until the context ends and all of them have ended. A FinalError of one ends the others too, and
// is returned. Otherwise the error names the services that did not end.
func Run(ctx context.Context, cfg Config) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if cfg.Backoff == 0 {
		cfg.Backoff = backoff
	}
	root := suture.New("quartet", suture.Spec{
		// The nested supervisors inherit this hook.
		EventHook: hook(cfg.Logger, cfg.Backoff),
		Timeout:   cfg.StopTimeout,
	})
	inTurn(processesOf(cfg.Services))
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
		return fmt.Errorf("reading which services have not ended: %w", err)
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

func processesOf(services []Service) (processes []*Process) {
	for _, service := range services {
		if p, ok := service.(*Process); ok {
			processes = append(processes, p)
		}
	}
	return processes
}

// final wraps a service whose FinalError ends all services.
type final struct {
	Service
	end context.CancelCauseFunc
}

// Serve serves, and prevents a restart after a FinalError.
func (f final) Serve(ctx context.Context) error {
	err := f.Service.Serve(ctx)
	if reason := (*FinalError)(nil); errors.As(err, &reason) {
		f.end(err)
		return errors.Join(suture.ErrDoNotRestart, err)
	}
	return err
}

// hook logs the end of a service, its reason, and its restart.
func hook(logger *slog.Logger, backoff time.Duration) suture.EventHook {
	return func(event suture.Event) {
		switch e := event.(type) {
		case suture.EventServiceTerminate:
			if reason := (*FinalError)(nil); errors.As(asError(e.Err), &reason) {
				logger.Error("a process of the node has an invalid configuration; the node exits", "process", e.ServiceName)
				return
			}
			next := "at once"
			if !e.Restarting {
				next = fmt.Sprintf("in about %v, because it ends repeatedly", backoff)
			}
			logger.Warn("a process of the node has ended and is restarted",
				"process", e.ServiceName, "error", fmt.Sprint(e.Err), "again", next)
		case suture.EventServicePanic:
			logger.Error("supervising a process has panicked", "process", e.ServiceName, "panic", e.PanicMsg,
				"stack", e.Stacktrace)
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
