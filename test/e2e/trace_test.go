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

// traces receives the spans of the node's processes.
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

// pathOfAStart has all edges from a manifest to a Ready pod of one container.
var pathOfAStart = []edge{
	{"", "configmux source.read"},
	{"configmux source.read", "configmux merge"},
	{"configmux merge", "configmux publish"},
	{"configmux publish", "syncloop dispatch"},
	{"syncloop dispatch", "syncloop pod.sync"},
	{"syncloop pod.sync", "syncloop quartet.node.v1.NodeService/GetNode"},
	{"syncloop quartet.node.v1.NodeService/GetNode", "nodestatus quartet.node.v1.NodeService/GetNode"},
	{"syncloop pod.sync", "syncloop sandbox"},
	{"syncloop sandbox", "syncloop runtime.v1.RuntimeService/RunPodSandbox"},
	{"syncloop runtime.v1.RuntimeService/RunPodSandbox", "containerd runtime.v1.RuntimeService/RunPodSandbox"},
	{"syncloop pod.sync", "syncloop image"},
	{"syncloop pod.sync", "syncloop container.create"},
	{"syncloop container.create", "syncloop runtime.v1.RuntimeService/CreateContainer"},
	{"syncloop runtime.v1.RuntimeService/CreateContainer", "containerd runtime.v1.RuntimeService/CreateContainer"},
	{"syncloop pod.sync", "syncloop container.start"},
	{"syncloop container.start", "syncloop runtime.v1.RuntimeService/StartContainer"},
	{"syncloop runtime.v1.RuntimeService/StartContainer", "containerd runtime.v1.RuntimeService/StartContainer"},
	{"syncloop container.create", "pleg lifecycle.event"},
	{"pleg lifecycle.event", "syncloop status.update"},
}

func TestOneTraceFromTheManifestToReady(t *testing.T) {
	place(t, "traced.yaml", manifest("traced", 1, "sleep"))
	p := await(t, "traced", "Ready", ready)
	missing := pathOfAStart
	incomplete := func() bool { return len(missing) > 0 || broken(traceOf(t, p)) != "" }
	for end := time.Now().Add(patience); incomplete() && time.Now().Before(end); <-time.After(interval) {
		missing = missingEdges(traceOf(t, p))
	}
	spans := traceOf(t, p)
	t.Log("\n" + drawTrace(spans))
	for _, e := range missing {
		t.Errorf("the trace lacks %q as a child of %q", e.child, e.parent)
	}
	if reason := broken(spans); reason != "" {
		t.Errorf("the trace is not one tree: %s", reason)
	}
	for _, s := range spans {
		if s.Failed {
			t.Errorf("span %s of %s failed: %s", s.Name, s.Service, s.Message)
		}
		if s.Service != "containerd" && (s.Resource["k8s.node.name"] == "" || s.Resource["service.version"] == "") {
			t.Errorf("span %s of %s does not say whose it is: %v", s.Name, s.Service, s.Resource)
		}
	}
}

// Calls outside of a trace, such as the relists of pleg, begin no trace of containerd.
func TestContainerdTracesWhatIsTracedAndNoMore(t *testing.T) {
	place(t, "quiet.yaml", manifest("quiet", 1, "sleep"))
	p := await(t, "quiet", "Ready", ready)
	awaitThat(t, "containerd's part of the pod's trace", func() bool {
		return slices.ContainsFunc(traceOf(t, p), func(s otlpsink.Span) bool { return s.Service == "containerd" })
	})
	for _, s := range traces.Spans() {
		if s.Service == "containerd" && s.ParentID == "" {
			t.Errorf("containerd has begun a trace, with %s", s.Name)
		}
	}
}

// A container that keeps crashing: each crash begins a trace, which includes the restart, also after a back-off, and
// has a link to the start of the crashed container.
func TestARestartLeadsToItsCrashAndACrashToItsStart(t *testing.T) {
	place(t, "linked.yaml", manifest("linked", 1, "crash", "-after", "500ms"))
	p := await(t, "linked", "restarted twice", func(p *v1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 1
	})
	created := make([]otlpsink.Span, 3)
	for i := range created {
		created[i] = awaitSpan(t, p, "container.create", fmt.Sprint("start ", i), map[string]string{"k8s.container.restart_count": fmt.Sprint(i)})
	}
	for i := range 2 {
		died := awaitSpan(t, p, "lifecycle.event", fmt.Sprint("crash ", i), map[string]string{
			"quartet.event": "ContainerDied", "k8s.container.restart_count": fmt.Sprint(i),
		})
		before, after := created[i], created[i+1]
		if died.TraceID == before.TraceID || died.ParentID != "" {
			t.Errorf("crash %d does not begin a trace of its own", i)
		}
		if !slices.Contains(died.Links, otlpsink.Link{TraceID: before.TraceID, SpanID: before.SpanID}) {
			t.Errorf("crash %d is linked to %v, want to what created the container, %s of trace %s", i, died.Links, before.SpanID, before.TraceID)
		}
		if after.TraceID != died.TraceID {
			t.Errorf("restart %d is not in the trace of its crash", i+1)
		}
		if !died.Failed || died.Attributes["process.exit.code"] == "0" || died.Attributes["error.type"] != "Error" || died.Message == "" {
			t.Errorf("the span of crash %d does not say how the container ended: %q, %v", i, died.Message, died.Attributes)
		}
		awaitThat(t, fmt.Sprintf("the trace of crash %d is one tree", i), func() bool { return broken(spansOf(died.TraceID)) == "" })
		t.Logf("crash %d:\n%s", i, drawTrace(spansOf(died.TraceID)))
	}
}

// awaitSpan waits for a span of a pod with a name and attributes.
func awaitSpan(t *testing.T, p *v1.Pod, name, what string, attributes map[string]string) (found otlpsink.Span) {
	t.Helper()
	awaitThat(t, "the span of "+what, func() bool {
		return slices.ContainsFunc(traces.Spans(), func(s otlpsink.Span) bool {
			if s.Name != name || s.Attributes["k8s.pod.uid"] != string(p.UID) {
				return false
			}
			for key, value := range attributes {
				if s.Attributes[key] != value {
					return false
				}
			}
			found = s
			return true
		})
	})
	return found
}

// broken returns why the spans of a trace are not one tree; empty when they are.
func broken(spans []otlpsink.Span) string {
	ids, roots := map[string]bool{}, 0
	for _, s := range spans {
		ids[s.SpanID] = true
	}
	for _, s := range spans {
		switch {
		case s.ParentID == "":
			roots++
		case !ids[s.ParentID]:
			return fmt.Sprintf("%s of %s has the parent %s, which is not there", s.Name, s.Service, s.ParentID)
		}
	}
	if roots != 1 {
		return fmt.Sprintf("it has %d roots", roots)
	}
	return ""
}

// spansOf returns the spans of a trace that have arrived.
func spansOf(traceID string) []otlpsink.Span {
	return slices.DeleteFunc(traces.Spans(), func(s otlpsink.Span) bool { return s.TraceID != traceID })
}

// traceOf returns the spans of the trace of the pod's first dispatch.
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
	return spansOf(first.TraceID)
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

// drawTrace returns the trace as an indented list with times in milliseconds, for the failure text.
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
				note := ""
				if s.Failed {
					note = "  failed: " + s.Message
				}
				fmt.Fprintf(&b, "%7.1f ms %6.1f ms  %s%s %s%s\n", s.Start.Sub(spans[0].Start).Seconds()*1000, s.End.Sub(s.Start).Seconds()*1000, indent, s.Service, s.Name, note)
				draw(s.SpanID, indent+"  ")
			}
		}
	}
	draw("", "")
	return b.String()
}
