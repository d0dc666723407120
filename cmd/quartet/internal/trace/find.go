package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// found is a start with a known trace ID.
type found struct {
	pod     subject
	traceID string
	// began is the time of the start, to decide how long to wait for its spans; zero if unknown.
	began time.Time
}

// begun is a started sandbox or container of a pod.
type begun struct {
	// name is its readable name.
	name string
	at   time.Time
	// context is the trace in which it was created; invalid if there was none.
	context oteltrace.SpanContext
}

// beginnings returns what was started of a pod, or of one of its containers, the newest first.
func beginnings(status *lifecyclev1.PodStatus, container string) []begun {
	var all []begun
	add := func(name string, at time.Time, annotations map[string]string) {
		ctx := telemetry.WithTraceparent(context.Background(), annotations[telemetry.AnnotationTraceparent])
		all = append(all, begun{name: name, at: at, context: oteltrace.SpanContextFromContext(ctx)})
	}
	for _, c := range status.GetContainers() {
		if container != "" && c.GetName() != container {
			continue
		}
		at := c.GetCreatedAt()
		if c.GetStartedAt() != nil {
			at = c.GetStartedAt()
		}
		add("container "+c.GetName(), at.AsTime(), c.GetAnnotations())
	}
	if container == "" {
		for _, s := range status.GetSandboxes() {
			add("the sandbox", s.GetCreatedAt().AsTime(), s.GetAnnotations())
		}
	}
	slices.SortStableFunc(all, func(x, y begun) int { return y.at.Compare(x.at) })
	return all
}

// created completes a sentence about a container that was not created with the names of the others.
func created(status *lifecyclev1.PodStatus) string {
	var names []string
	for _, c := range status.GetContainers() {
		names = append(names, c.GetName())
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return ""
	}
	return ", or name one of " + strings.Join(names, ", ")
}

// fromNode finds the trace of the last start in the node's status of a pod. If there is none, traceID is empty, and why
// has the reason if it is known.
func fromNode(pod show.Located, container string) (f found, why string) {
	f.pod = subject{namespace: pod.Namespace, name: pod.Name, uid: pod.UID}
	all := beginnings(pod.Status, container)
	switch {
	case pod.Status == nil:
		return f, "pleg does not know the pod"
	case len(all) == 0:
		return f, "nothing of it has been created yet"
	}
	i := slices.IndexFunc(all, func(b begun) bool { return b.context.IsValid() })
	if i < 0 {
		return f, fmt.Sprintf(
			"%s was started without a trace at %s: syncloop had no OTEL_EXPORTER_OTLP_ENDPOINT then",
			all[0].name,
			all[0].at.Local().Format(time.DateTime),
		)
	}
	if !all[i].context.IsSampled() {
		return f, fmt.Sprintf(
			"the trace of %s, started at %s, was left out by sampling: see OTEL_TRACES_SAMPLER of configmux",
			all[i].name,
			all[i].at.Local().Format(time.DateTime),
		)
	}
	f.traceID, f.began, f.pod.span = all[i].context.TraceID().String(), all[i].at, all[i].context.SpanID().String()
	if i > 0 {
		why = fmt.Sprintf("%s was started later, at %s, and not traced", all[0].name, all[0].at.Local().Format(time.DateTime))
	}
	return f, why
}

// Spans of syncloop that identify a start: the first if a container was started, the others if not.
var startSpans = []string{"container.start", "sandbox", "pod.sync"}

// inJaeger searches Jaeger for the trace of the last start of a pod, by its possible names. It fails with errNoTrace if
// there is none.
func (c *command) inJaeger(ctx context.Context, j *jaeger, pods []subject, container string) (found, error) {
	for _, operation := range startSpans {
		for _, pod := range pods {
			attributes := map[string]string{
				string(semconv.K8SPodNameKey):       pod.name,
				string(semconv.K8SNamespaceNameKey): pod.namespace,
			}
			if container != "" && operation == startSpans[0] {
				attributes[string(semconv.K8SContainerNameKey)] = container
			}
			traces, err := j.search(ctx, string(layout.SyncLoop), operation, attributes, c.clock.Now())
			if err != nil {
				return found{}, err
			}
			if id, s := newest(traces, operation, attributes); s != nil {
				pod.uid = cmp.Or(pod.uid, s.attributes[string(semconv.K8SPodUIDKey)])
				return found{pod: pod, traceID: id}, nil
			}
		}
		if container != "" {
			break
		}
	}
	return found{}, errNoTrace
}

// newest returns the newest span with a name and attributes in traces.
func newest(traces []trace, name string, attributes map[string]string) (traceID string, last *span) {
	for _, t := range traces {
		for _, s := range t.spans {
			if s.name != name || last != nil && !s.start.After(last.start) {
				continue
			}
			if has(s.attributes, attributes) {
				traceID, last = t.id, s
			}
		}
	}
	return traceID, last
}

// has reports whether all wanted attributes are present.
func has(attributes, wanted map[string]string) bool {
	for key, value := range wanted {
		if attributes[key] != value {
			return false
		}
	}
	return true
}

// find finds the trace of the last start of a pod.
func (c *command) find(ctx context.Context, j *jaeger, name string) (found, error) {
	located, err := c.locate(ctx, c.node, c.namespace, name)
	var candidates []subject
	var why error
	switch noPod := (*show.NoPodError)(nil); {
	case err == nil && c.container != "" && len(beginnings(located.Status, c.container)) == 0:
		return found{}, fmt.Errorf("no container %q of pod %s/%s has been created: leave out -c to see how far the pod got%s",
			c.container, located.Namespace, located.Name, created(located.Status))
	case err == nil:
		f, reason := fromNode(located, c.container)
		if reason != "" {
			why = errors.New(reason)
		}
		if f.traceID != "" {
			if why != nil {
				c.notef("this is not the last start: %v", why)
			}
			return f, nil
		}
		candidates = []subject{f.pod}
	case errors.As(err, &noPod):
		candidates, why = c.named(name), err
	default:
		c.notef("the node cannot say which trace it is, so Jaeger is searched: %v", err)
		candidates, why = c.named(name), err
	}
	f, err := c.inJaeger(ctx, j, candidates, c.container)
	if errors.Is(err, errNoTrace) {
		return f, c.noTrace(j, candidates[0], why)
	}
	return f, err
}

// named returns the possible names of a pod if the node is unknown: the name of a static pod has the node's suffix.
func (c *command) named(name string) []subject {
	namespace := cmp.Or(c.namespace, metav1.NamespaceDefault)
	if before, after, ok := strings.Cut(name, "/"); ok {
		namespace, name = before, after
	}
	subjects := []subject{{namespace: namespace, name: name}}
	if host, err := os.Hostname(); err == nil {
		subjects = append(subjects, subject{namespace: namespace, name: name + "-" + strings.ToLower(host)})
	}
	return subjects
}

// noTrace returns the error for a pod without a trace in Jaeger, with a remedy.
func (c *command) noTrace(j *jaeger, pod subject, why error) error {
	if noPod := (*show.NoPodError)(nil); errors.As(why, &noPod) {
		return fmt.Errorf("%w; and Jaeger at %s has no trace of one that was there before", why, j.base.Redacted())
	}
	reason := ""
	if why != nil {
		reason = " (" + why.Error() + ")"
	}
	return fmt.Errorf(
		"there is no trace of a start of pod %s/%s in Jaeger at %s%s: is OTEL_EXPORTER_OTLP_ENDPOINT set for the four services and does it lead to this Jaeger, "+
			"does OTEL_TRACES_SAMPLER keep the trace, and has Jaeger been restarted since without a store on disk?",
		pod.namespace,
		pod.name,
		j.base.Redacted(),
		reason,
	)
}
