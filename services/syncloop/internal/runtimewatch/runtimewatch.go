// Package runtimewatch keeps the runtime's part of syncloop's health: whether this process reaches the container runtime,
// whatever pleg, which has a connection of its own, says of it.
package runtimewatch

import (
	"context"
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
	// Waiting gets why the runtime cannot be used, empty when it can: (*rpc.Health).Set.
	Waiting func(what, reason string)
	// Clock times the questions.
	Clock clock.Clock
}

// Run asks the runtime for its version until ctx ends; it returns nil then.
func Run(ctx context.Context, cfg Config) error {
	cfg.Waiting(Name, (&cri.NotConnectedError{Endpoint: cfg.Endpoint}).Error())
	for {
		pause, reason := period, ""
		if err := ask(ctx, cfg); err != nil {
			pause, reason = impatience, cri.Away(cfg.Endpoint, err).Error()
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
	return nil
}
