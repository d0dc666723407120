// Package runtimewatch keeps the runtime's part of syncloop's health: whether this process reaches the container
// runtime, whatever pleg, which has a connection of its own, says of it.
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
	// period separates questions to a runtime that answers, impatience those to one that does not.
	period     = 2 * time.Second
	impatience = 500 * time.Millisecond
	// connectTimeout is when a runtime that has never answered is said to be away, and why.
	connectTimeout = time.Second
	// answerTimeout is when one that takes a question and does not answer is.
	answerTimeout = 5 * time.Second
)

// Config says whom to ask and whom to tell.
type Config struct {
	// Endpoint is named in what is wrong.
	Endpoint string
	// Runtime and Images return the services, waiting within their context until there are some.
	Runtime func(context.Context) (internalapi.RuntimeService, error)
	Images  func(context.Context) (internalapi.ImageManagerService, error)
	// Named gets the runtime's name at each answer.
	Named func(string)
	// CgroupDriver is what this process was started with, and says of its pods' cgroups. Empty when it does not matter.
	CgroupDriver string
	// Waiting gets why the runtime cannot be used, empty when it can: (*rpc.Health).Set.
	Waiting func(what, reason string)
	// Clock times the questions.
	Clock clock.Clock
}

// DriverError says that the process has been started with another cgroup driver than the runtime has. The next start
// has the right one.
type DriverError struct{ Own, Runtime string }

func (e *DriverError) Error() string {
	return fmt.Sprintf("the container runtime has the cgroup driver %s, and this process was started with %s before the runtime answered: it ends, and its next start has %[1]s", e.Runtime, e.Own)
}

// Run asks the runtime for its version until ctx ends; it returns nil then. It fails with a *DriverError when the first
// answer shows another cgroup driver than cfg's.
func Run(ctx context.Context, cfg Config) error {
	cfg.Waiting(Name, (&cri.NotConnectedError{Endpoint: cfg.Endpoint}).Error())
	for {
		pause, reason := period, ""
		err := ask(ctx, cfg)
		if driver := (*DriverError)(nil); errors.As(err, &driver) {
			return driver
		}
		if err != nil {
			pause, reason = impatience, cri.Away(cfg.Endpoint, err).Error()
		} else {
			cfg.CgroupDriver = "" // a runtime that changes it is not followed, because there are pods
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
	if err != nil {
		return err
	}
	if driver != "" && driver != cfg.CgroupDriver {
		return &DriverError{Own: cfg.CgroupDriver, Runtime: driver}
	}
	return nil
}
