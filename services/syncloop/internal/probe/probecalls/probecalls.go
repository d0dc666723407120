// Package probecalls makes single calls of probes: a command in the container (exec), a request (HTTP), a connection
// (TCP) or a query of its health service (gRPC), and returns the result as the kubelet does.
//
// Package prober decides who is probed when, and how many calls make a result: it calls [Caller.Probe]. A call without
// success becomes an event of the pod here; every call is counted.
//
// The dialer, the lookup of named ports, the HTTP request and the rule for redirects are those of
// k8s.io/kubernetes/pkg/probe. Its calls are not used: they have no context, log the headers of a request, and report a
// version that only the linker of Kubernetes sets; that of exec includes a part of the kubelet. A test compares the
// results of both packages.
package probecalls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/cri"
)

const (
	// tries is the number of attempts for a call with an error, as in the kubelet.
	tries = 3
	// maxOutput bounds the output of a container in bytes, as in the kubelet.
	maxOutput = 10 << 10
	// eventUnhealthy and eventWarning are the kubelet's reasons.
	eventUnhealthy = "Unhealthy"
	eventWarning   = "ProbeWarning"
)

// Kind is the kubelet's name of a kind of probe, in events and metrics.
type Kind string

// The kinds.
const (
	Liveness  Kind = "Liveness"
	Readiness Kind = "Readiness"
	Startup   Kind = "Startup"
)

// Outcome is the result of a call.
type Outcome int

// The outcomes.
const (
	// Unknown: the call could not be made, or its end says nothing about the container. The result is ignored, and does
	// not count towards a threshold.
	Unknown Outcome = iota
	// Success: the probe has succeeded.
	Success
	// Failure: the probe has failed or timed out.
	Failure
)

// String returns the outcome in one lower-case word.
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

// Target is the container to probe.
type Target struct {
	// Pod and Container are the desired ones, and Probe is the container's probe of that Kind.
	Pod       *v1.Pod
	Container *v1.Container
	Kind      Kind
	Probe     *v1.Probe
	// ContainerID is the runtime's ID of the running container, for exec.
	ContainerID string
	// PodIP is the pod's first address; that of the node for a pod on the host's network.
	PodIP string
}

// Answer is the result of a call with its details.
type Answer struct {
	Outcome Outcome
	// Output is for people: the container's output, why the call failed, or a summary of Err; at most 10 KiB.
	Output string
	// Warning is true for a success that deserves attention: a redirect to another host, which was not followed.
	Warning bool
	// Err is why the call could not be made; only for Unknown.
	Err error
}

// Events receives calls without success; *podevents.Recorder implements it.
type Events interface {
	// Warning records an event of a container of a pod: a reason in one word, and a sentence.
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// Config holds the parameters of a Caller.
type Config struct {
	// Runtime returns the runtime's service without waiting, or why there is none.
	Runtime func() (internalapi.RuntimeService, error)
	// Version is the reported version of Kubernetes, such as "v1.37.2"; by default that of the build.
	Version string
	// Clock times calls; the real clock if nil.
	Clock clock.PassiveClock
	// Events and Metrics may be nil.
	Events  Events
	Metrics *Metrics
}

// Caller makes the calls. Its methods are safe for concurrent use; it has no goroutine, and keeps no connection between
// calls.
type Caller struct {
	cfg       Config
	transport *http.Transport
	userAgent string
}

// noopEvents is an Events that discards events.
type noopEvents struct{}

// Warning implements Events.
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// New returns a caller.
func New(cfg Config) *Caller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Caller{cfg: cfg, transport: newTransport(), userAgent: userAgent(cmp.Or(cfg.Version, buildinfo.Kubernetes()))}
}

// userAgent returns the user agent of HTTP and gRPC probes, with the minor version alone, as in the kubelet:
// kube-probe/1.37.
func userAgent(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return "kube-probe/" + major + "." + minor
}

// Probe makes a call and returns the result; a call without success is recorded as an event. Each attempt is bounded by
// the probe's timeoutSeconds; an error of the call itself is retried at once, up to three attempts. A command to which
// the runtime answers in none of them has failed. After the end of ctx it returns soon with Unknown, which is neither
// recorded nor counted; ctx needs no deadline.
func (c *Caller) Probe(ctx context.Context, t Target) Answer {
	began := c.cfg.Clock.Now()
	var answer Answer
	for range tries {
		answer = c.try(ctx, t)
		if err := ctx.Err(); err != nil {
			return Answer{Err: fmt.Errorf("the probe was cut short: %w", err)}
		}
		if answer.Err == nil {
			break
		}
	}
	if errors.Is(answer.Err, errUnanswered) {
		answer = failure(answer.Err.Error())
	}
	if answer.Err != nil {
		answer.Output = cut(cri.WithoutIDs(errorText(answer.Err), t.Container.Name))
	}
	c.cfg.Metrics.probed(t, answer.Outcome, c.cfg.Clock.Since(began))
	c.recordEvent(ctx, t, answer)
	return answer
}

// Forget drops the metrics of a probe whose container is gone. Only the pod, the container's name and the kind of the
// target matter.
func (c *Caller) Forget(t Target) { c.cfg.Metrics.forget(t) }

// try makes one attempt.
func (c *Caller) try(ctx context.Context, t Target) Answer {
	switch {
	case t.Probe == nil:
		return unknown(fmt.Errorf("the container has no %s probe", strings.ToLower(string(t.Kind))))
	case t.Probe.Exec != nil:
		return c.exec(ctx, t)
	case t.Probe.HTTPGet != nil:
		return c.httpGet(ctx, t)
	case t.Probe.TCPSocket != nil:
		return tcpSocket(ctx, t)
	case t.Probe.GRPC != nil:
		return c.grpc(ctx, t)
	}
	return unknown(errors.New("the probe names no action: give exec, httpGet, tcpSocket or grpc"))
}

// recordEvent records an event of a call without success, in the kubelet's words. Repeated problems have the same text,
// so that they become one event.
func (c *Caller) recordEvent(ctx context.Context, t Target, a Answer) {
	reason, message := "", ""
	switch {
	case a.Outcome == Unknown:
		reason, message = eventUnhealthy, fmt.Sprintf("%s probe errored and resulted in unknown state: %s", t.Kind, a.Output)
	case a.Outcome == Failure:
		reason, message = eventUnhealthy, fmt.Sprintf("%s probe failed: %s", t.Kind, a.Output)
	case a.Warning:
		reason, message = eventWarning, fmt.Sprintf("%s probe warning: %s", t.Kind, a.Output)
	default:
		return
	}
	c.cfg.Events.Warning(ctx, t.Pod, t.Container.Name, reason, strings.ToValidUTF8(message, "\uFFFD"))
}

// errorText returns the readable text of an error, without gRPC's prefix.
func errorText(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func success(output string) Answer { return Answer{Outcome: Success, Output: output} }
func failure(output string) Answer { return Answer{Outcome: Failure, Output: cut(output)} }
func unknown(err error) Answer     { return Answer{Err: err} }

// timeout returns the timeout of an attempt.
func (t Target) timeout() time.Duration { return time.Duration(t.Probe.TimeoutSeconds) * time.Second }

// host returns the host of a probe, by default the pod's address.
func (t Target) host(named string) (string, error) {
	if host := cmp.Or(named, t.PodIP); host != "" {
		return host, nil
	}
	return "", errors.New("the pod has no address yet")
}

// cut truncates an output.
func cut[T string | []byte](output T) string { return string(output[:min(len(output), maxOutput)]) }
