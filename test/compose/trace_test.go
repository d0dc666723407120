package compose

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// span is a span of Jaeger's query API, with the fields that this test uses.
type span struct {
	SpanID        string `json:"spanID"`
	OperationName string `json:"operationName"`
	ProcessID     string `json:"processID"`
	References    []struct {
		RefType string `json:"refType"`
		SpanID  string `json:"spanID"`
	} `json:"references"`
}

func (s span) parent() string {
	for _, r := range s.References {
		if r.RefType == "CHILD_OF" {
			return r.SpanID
		}
	}
	return ""
}

type trace struct {
	TraceID   string `json:"traceID"`
	Spans     []span `json:"spans"`
	Processes map[string]struct {
		ServiceName string `json:"serviceName"`
	} `json:"processes"`
}

// missing returns what the trace lacks: a service, a single root, a parent in the trace, the Ready span at its end.
func (t trace) missing() []string {
	var lacks []string
	ids := map[string]bool{}
	services := map[string]bool{}
	names := map[string]bool{}
	for _, s := range t.Spans {
		ids[s.SpanID] = true
		services[t.Processes[s.ProcessID].ServiceName] = true
		names[s.OperationName] = true
	}
	for _, want := range []string{"configmux", "pleg", "syncloop", "nodestatus", "containerd"} {
		if !services[want] {
			lacks = append(lacks, "spans of "+want)
		}
	}
	for _, want := range []string{"source.read", "runtime.v1.RuntimeService/RunPodSandbox", "runtime.v1.RuntimeService/StartContainer", "lifecycle.event", "status.update"} {
		if !names[want] {
			lacks = append(lacks, "the span "+want)
		}
	}
	roots := 0
	for _, s := range t.Spans {
		switch parent := s.parent(); {
		case parent == "":
			roots++
		case !ids[parent]:
			lacks = append(lacks, fmt.Sprintf("the parent of %s of %s", s.OperationName, t.Processes[s.ProcessID].ServiceName))
		}
	}
	if roots != 1 {
		lacks = append(lacks, fmt.Sprintf("one root, it has %d", roots))
	}
	return lacks
}

// traceOfAStart: the spans arrive within seconds of the pod's Ready, because each process sends its own.
func traceOfAStart(s *stack) {
	s.place("web", manifest("web"))
	pod := s.awaitReady("web")
	var lacks []string
	s.await("Jaeger has the whole trace of the pod", func() bool {
		lacks = []string{"the trace"}
		for _, t := range s.traces(string(pod.UID)) {
			if slices.ContainsFunc(t.Spans, func(s span) bool { return s.OperationName == "source.read" }) {
				lacks = t.missing()
			}
		}
		return len(lacks) == 0
	}, func() string { return "it lacks " + strings.Join(lacks, ", ") })
	out := s.quartet("trace", pod.Name, "-n", pod.Namespace, "--jaeger", s.jaeger)
	for _, want := range []string{"slowest", "source.read", "RunPodSandbox", "containerd", "nodestatus"} {
		if !strings.Contains(out, want) {
			s.t.Errorf("quartet trace does not show %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "orphan") {
		s.t.Errorf("quartet trace shows orphans:\n%s\nwant text without %q", out, "orphan")
	}
	s.t.Logf("\n%s", out)
}

// traces returns the traces with a span of a pod.
func (s *stack) traces(uid string) []trace {
	s.t.Helper()
	response, err := http.Get(s.jaeger + "/api/traces?service=syncloop&limit=20&tags=%7B%22k8s.pod.uid%22%3A%22" + uid + "%22%7D")
	s.must(err)
	defer response.Body.Close() //nolint:errcheck // the body was only read
	var answer struct {
		Data []trace `json:"data"`
	}
	s.must(json.NewDecoder(response.Body).Decode(&answer))
	return answer.Data
}
