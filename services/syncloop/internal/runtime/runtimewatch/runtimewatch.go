// Package runtimewatch maintains the runtime's part of syncloop's health status: whether this process reaches the
// container runtime. It does not depend on pleg, which has its own connection.
package runtimewatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
)

// Name is the runtime's name in grpc.health.v1.
const Name = "runtime"

const (
	// period is the time between two calls of a runtime that responds, unhealthyPeriod of one that does not.
	period          = 2 * time.Second
	unhealthyPeriod = 500 * time.Millisecond
	// connectTimeout is the time after which a runtime that has never responded is reported as unavailable, with the
	// reason.
	connectTimeout = time.Second
	// answerTimeout is the time limit of a call.
	answerTimeout = 5 * time.Second
)

// Config holds the dependencies of Run.
type Config struct {
	// Endpoint is the runtime's endpoint in messages.
	Endpoint string
	// Runtime and Images wait for the services within their context, and return them.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	Images  func(context.Context) (internalapi.ImageManagerService, error)
	// Named receives the runtime's name with each response.
	Named func(string)
	// CgroupDriver is the cgroup driver that this process was started with and uses for its pods. Empty if it does not
	// matter.
	CgroupDriver string
	// Metrics has whether the runtime loses support; nil discards it.
	Metrics *Metrics
	// Waiting receives the reason why the runtime cannot be used, or an empty text if it can: (*rpc.Health).Set.
	Waiting func(part, reason string)
	// Clock is the time between calls.
	Clock clock.Clock
}

// DriverError reports that the process was started with a cgroup driver other than the runtime's. The next start uses
// the right one.
type DriverError struct{ Own, Runtime string }

func (e *DriverError) Error() string {
	return fmt.Sprintf("the container runtime uses the cgroup driver %s, but this process was started with %s before the runtime responded: it exits, and its next start uses %[1]s", e.Runtime, e.Own)
}

// Run requests the runtime's version until ctx ends; it returns nil then. It fails with a *DriverError if the first
// response shows a cgroup driver other than cfg's.
func Run(ctx context.Context, cfg Config) error {
	cfg.Waiting(Name, (&cri.NotConnectedError{Endpoint: cfg.Endpoint}).Error())
	for {
		pause, reason := period, ""
		err := ask(ctx, cfg)
		if driver := (*DriverError)(nil); errors.As(err, &driver) {
			return driver
		}
		if err != nil {
			pause, reason = unhealthyPeriod, cri.Away(cfg.Endpoint, err).Error()
		} else {
			cfg.CgroupDriver = "" // later changes of the runtime's driver are ignored, because pods exist
		}
		if ctx.Err() != nil {
			return nil
		}
		cfg.Waiting(Name, reason)
		select {
		case <-ctx.Done():
			return nil
		case <-cfg.Clock.After(pause):
		}
	}
}

func ask(ctx context.Context, cfg Config) error {
	connect, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	runtime, err := cfg.Runtime(connect)
	if err != nil {
		return err
	}
	if _, err := cfg.Images(connect); err != nil {
		return err
	}
	ctx, cancelAnswer := context.WithTimeout(cri.Quiet(ctx), answerTimeout)
	defer cancelAnswer()
	version, err := runtime.Version(ctx, "")
	if err != nil {
		return err
	}
	cfg.Named(version.GetRuntimeName())
	if cfg.CgroupDriver == "" {
		return nil
	}
	driver, err := cri.CgroupDriver(ctx, runtime)
	if errors.Is(err, cri.ErrNoRuntimeConfig) {
		cfg.Metrics.LosesSupport()
		return nil
	}
	if err != nil {
		return err
	}
	if driver != "" && driver != cfg.CgroupDriver {
		return &DriverError{Own: cfg.CgroupDriver, Runtime: driver}
	}
	return nil
}
