// Package probecalls makes one call of one probe: a command in the container (exec), a request (HTTP), a connection (TCP) or a
// question to its health service (gRPC), and says how it went, as the kubelet does.
//
// Who is probed when, and how many answers make a result, is package prober' to say: it calls [Caller.Probe]. An answer that is
// no success becomes an event of the pod here; every answer is counted.
//
// The dialer, the lookup of named ports, the HTTP request and the rule for redirects are those of k8s.io/kubernetes/pkg/probe. Its
// calls are not: they know no context, log the headers of a request, and say a version that only the linker of Kubernetes sets;
// that of exec brings a part of the kubelet. A test compares what they and this package answer.
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
	// tries is how often a call is made that has an error, as by the kubelet.
	tries = 3
	// maxOutput is how much is taken of what a container says, in bytes, as by the kubelet.
	maxOutput = 10 << 10
	// eventUnhealthy and eventWarning are the kubelet's reasons.
	eventUnhealthy = "Unhealthy"
	eventWarning   = "ProbeWarning"
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
	// Output is for people: what the container said, why it counts as failed, or in short what Err says; at most 10 KiB.
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
	// Version is the Kubernetes that the probes say to be of, such as "v1.37.2"; that which the program is built with when empty.
	Version string
	// Clock tells how long calls take; the real one when nil.
	Clock clock.PassiveClock
	// Events and Metrics are nobody's to see when nil.
	Events  Events
	Metrics *Metrics
}

// Caller makes the calls. Its methods may be called at any time from any goroutine; it owns none itself, and keeps no connection
// from one call to the next.
type Caller struct {
	cfg       Config
	transport *http.Transport
	userAgent string
}

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
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Caller{cfg: cfg, transport: newTransport(), userAgent: userAgent(cmp.Or(cfg.Version, buildinfo.Kubernetes()))}
}

// userAgent is what HTTP and gRPC probes say of themselves, with the minor version alone, as the kubelet does: kube-probe/1.37.
func userAgent(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return "kube-probe/" + major + "." + minor
}

// Probe makes a call and says how it went; an answer that is no success is told as an event. Each try may take the probe's
// timeoutSeconds; an error of the call itself is tried again at once, three times altogether. It returns soon after ctx is cancelled,
// with Unknown, which then is neither told nor counted; ctx needs no deadline of its own.
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
	if answer.Err != nil {
		answer.Output = cut(cri.WithoutIDs(said(answer.Err), t.Container.Name))
	}
	c.cfg.Metrics.probed(t, answer.Outcome, c.cfg.Clock.Since(began))
	c.tell(ctx, t, answer)
	return answer
}

// Forget drops the metrics of a probe whose container is gone for good. Of the target, only the pod, the container's name and the
// kind matter.
func (c *Caller) Forget(t Target) { c.cfg.Metrics.forget(t) }

// try makes the call once.
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

// tell makes an event of an answer that somebody should know, in the kubelet's words. The same trouble is the same text each time,
// so that it is one event.
func (c *Caller) tell(ctx context.Context, t Target, a Answer) {
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

// said is what an error says to people: of an answer of the runtime, its words alone.
func said(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

func success(output string) Answer { return Answer{Outcome: Success, Output: output} }
func failure(output string) Answer { return Answer{Outcome: Failure, Output: cut(output)} }
func unknown(err error) Answer     { return Answer{Err: err} }

// timeout is how long a try may take.
func (t Target) timeout() time.Duration { return time.Duration(t.Probe.TimeoutSeconds) * time.Second }

// host is where a probe goes that names the host, or none.
func (t Target) host(named string) (string, error) {
	if host := cmp.Or(named, t.PodIP); host != "" {
		return host, nil
	}
	return "", errors.New("the pod has no address yet")
}

// cut returns as much of an output as is taken of it.
func cut[T string | []byte](output T) string { return string(output[:min(len(output), maxOutput)]) }
