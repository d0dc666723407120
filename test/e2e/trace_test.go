package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/otlpsink"
)

// traces receives what the node's processes send.
var (
	traces     *otlpsink.Sink
	stopTraces func() error
)

func startTraces() (err error) {
	traces, stopTraces, err = otlpsink.New()
	return err
}

// edge is a parent and a child, each "service span", that a trace must have.
type edge struct{ parent, child string }

// pathOfAStart is everything on the way from a manifest to a Ready pod of one container.
var pathOfAStart = []edge{
	{"", "configmux source.read"},
	{"configmux source.read", "configmux merge"},
	{"configmux merge", "configmux publish"},
	{"configmux publish", "syncloop dispatch"},
	{"syncloop dispatch", "syncloop pod.sync"},
	{"syncloop pod.sync", "syncloop sandbox"},
	{"syncloop sandbox", "syncloop cri.RunPodSandbox"},
	{"syncloop pod.sync", "syncloop image"},
	{"syncloop pod.sync", "syncloop container.create"},
	{"syncloop container.create", "syncloop cri.CreateContainer"},
	{"syncloop pod.sync", "syncloop container.start"},
	{"syncloop container.start", "syncloop cri.StartContainer"},
	{"syncloop container.create", "pleg lifecycle.event"},
	{"pleg lifecycle.event", "syncloop status.update"},
}

func TestOneTraceFromTheManifestToReady(t *testing.T) {
	place(t, "traced.yaml", manifest("traced", 1, "sleep"))
	p := await(t, "traced", "Ready", ready)
	missing := pathOfAStart
	for end := time.Now().Add(patience / 3); len(missing) > 0 && time.Now().Before(end); <-time.After(interval) {
		missing = missingEdges(traceOf(t, p))
	}
	t.Log("\n" + drawTrace(traceOf(t, p)))
	for _, e := range missing {
		t.Errorf("the trace lacks %q as a child of %q", e.child, e.parent)
	}
	for _, s := range traceOf(t, p) {
		if s.Failed {
			t.Errorf("span %s of %s failed", s.Name, s.Service)
		}
	}
}

func TestACrashStartsATraceThatIsLinkedToTheStart(t *testing.T) {
	place(t, "linked.yaml", manifest("linked", 1, "crash", "-after", "500ms"))
	p := await(t, "linked", "restarted", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	})
	start := traceOf(t, p)
	awaitThat(t, "a death in a trace of its own, linked to the start", func() bool {
		return slices.ContainsFunc(traces.Spans(), func(s otlpsink.Span) bool {
			return s.Service == "pleg" && s.Attributes["k8s.pod.uid"] == string(p.UID) && s.TraceID != start[0].TraceID &&
				slices.ContainsFunc(s.Links, func(to otlpsink.Link) bool {
					return slices.ContainsFunc(start, func(of otlpsink.Span) bool { return of.SpanID == to.SpanID })
				})
		})
	})
}

// traceOf returns the spans of the trace in which the pod was dispatched first.
func traceOf(t *testing.T, p *v1.Pod) []otlpsink.Span {
	t.Helper()
	var first otlpsink.Span
	awaitThat(t, "the pod's dispatch has arrived", func() bool {
		for _, s := range traces.Spans() {
			if s.Name == "dispatch" && s.Attributes["k8s.pod.uid"] == string(p.UID) && (first.Name == "" || s.Start.Before(first.Start)) {
				first = s
			}
		}
		return first.Name != ""
	})
	var spans []otlpsink.Span
	for _, s := range traces.Spans() {
		if s.TraceID == first.TraceID {
			spans = append(spans, s)
		}
	}
	return spans
}

func missingEdges(spans []otlpsink.Span) []edge {
	byID := map[string]string{}
	for _, s := range spans {
		byID[s.SpanID] = s.Service + " " + s.Name
	}
	have := map[edge]bool{}
	for _, s := range spans {
		have[edge{byID[s.ParentID], s.Service + " " + s.Name}] = true
	}
	return slices.DeleteFunc(slices.Clone(pathOfAStart), func(e edge) bool { return have[e] })
}

// drawTrace is the trace as an indented list with times in milliseconds, for who reads a failure.
func drawTrace(spans []otlpsink.Span) string {
	if len(spans) == 0 {
		return "(no spans)"
	}
	slices.SortFunc(spans, func(a, b otlpsink.Span) int { return a.Start.Compare(b.Start) })
	var b strings.Builder
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		for _, s := range spans {
			if s.ParentID == parent {
				fmt.Fprintf(&b, "%7.1f ms %6.1f ms  %s%s %s\n", s.Start.Sub(spans[0].Start).Seconds()*1000, s.End.Sub(s.Start).Seconds()*1000, indent, s.Service, s.Name)
				draw(s.SpanID, indent+"  ")
			}
		}
	}
	draw("", "")
	return b.String()
}
