package trace

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// span is one step of a trace.
type span struct {
	// id and parent are span ids; parent is empty for a span that has none.
	id, parent    string
	service, name string
	start, end    time.Time
	// attributes are as text.
	attributes map[string]string
	failed     bool
	// message says why it failed, as far as it says.
	message string
	// links are the traces that it is linked to, its own left out.
	links []string
}

// duration is how long the span took.
func (s *span) duration() time.Duration { return s.end.Sub(s.start) }

// trace is what Jaeger has of one trace.
type trace struct {
	id    string
	spans []*span
}

// What follows is the part that is needed of the JSON of Jaeger's query API (its package model/json). Times are in
// microseconds, those of starts since 1970.
type (
	jaegerAnswer struct {
		Data   []jaegerTrace `json:"data"`
		Errors []jaegerError `json:"errors"`
	}
	jaegerError struct {
		Code    int    `json:"code"`
		Message string `json:"msg"`
	}
	jaegerTrace struct {
		ID        string                   `json:"traceID"`
		Spans     []jaegerSpan             `json:"spans"`
		Processes map[string]jaegerProcess `json:"processes"`
	}
	jaegerSpan struct {
		ID         string            `json:"spanID"`
		Name       string            `json:"operationName"`
		References []jaegerReference `json:"references"`
		Start      uint64            `json:"startTime"`
		Duration   uint64            `json:"duration"`
		Tags       []jaegerTag       `json:"tags"`
		Logs       []jaegerLog       `json:"logs"`
		Process    string            `json:"processID"`
	}
	jaegerReference struct {
		Type  string `json:"refType"`
		Trace string `json:"traceID"`
		Span  string `json:"spanID"`
	}
	jaegerTag struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	}
	jaegerLog struct {
		Fields []jaegerTag `json:"fields"`
	}
	jaegerProcess struct {
		Service string `json:"serviceName"`
	}
)

const (
	childOf = "CHILD_OF"
	// maxStart, the year 9999, and maxDuration keep what is computed with times from overflowing.
	maxStart    = 253402300799_000_000
	maxDuration = uint64(100 * 365 * 24 * time.Hour / time.Microsecond)
)

// decode reads an answer of Jaeger's query API. An error that Jaeger reports in it is returned as a *reportedError.
func decode(data []byte) ([]trace, error) {
	var answer jaegerAnswer
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("the answer is not the JSON of Jaeger's query API: %w", err)
	}
	traces := make([]trace, 0, len(answer.Data))
	for _, t := range answer.Data {
		spans, err := t.decode()
		if err != nil {
			return nil, err
		}
		traces = append(traces, trace{id: t.ID, spans: spans})
	}
	// Of a search it may report an error for one trace beside others.
	if len(traces) == 0 && len(answer.Errors) > 0 {
		return nil, &reportedError{code: answer.Errors[0].Code, message: answer.Errors[0].Message}
	}
	return traces, nil
}

// reportedError is an error that Jaeger has put into words.
type reportedError struct {
	code    int
	message string
}

// Error implements error.
func (e *reportedError) Error() string { return fmt.Sprintf("it answers %q", e.message) }

func (t jaegerTrace) decode() ([]*span, error) {
	spans := make([]*span, 0, len(t.Spans))
	known := make(map[string]bool, len(t.Spans))
	for _, in := range t.Spans {
		switch {
		case in.ID == "":
			return nil, fmt.Errorf("trace %s has a span %q without an id", t.ID, in.Name)
		case in.Start > maxStart || in.Duration > maxDuration:
			return nil, fmt.Errorf("trace %s: span %s (%s) has the start %d and the duration %d µs, which are no times", t.ID, in.ID, in.Name, in.Start, in.Duration)
		case known[in.ID]:
			// A service that was not told that its spans arrived sends them again.
			continue
		}
		known[in.ID] = true
		spans = append(spans, t.span(in))
	}
	return spans, nil
}

// span converts one span. The reference to a parent in the same trace is its parent; every other trace that it refers to
// is a link.
func (t jaegerTrace) span(in jaegerSpan) *span {
	start := time.UnixMicro(int64(in.Start)) //nolint:gosec // decode has checked it
	out := &span{
		id: in.ID, service: t.Processes[in.Process].Service, name: in.Name, attributes: make(map[string]string, len(in.Tags)),
		start: start, end: start.Add(time.Duration(in.Duration) * time.Microsecond), //nolint:gosec // decode has checked it
	}
	for _, r := range in.References {
		switch {
		case r.Type == childOf && out.parent == "" && (r.Trace == t.ID || r.Trace == ""):
			out.parent = r.Span
		case r.Trace != t.ID && r.Trace != "":
			out.links = append(out.links, r.Trace)
		}
	}
	for _, tag := range in.Tags {
		out.attributes[tag.Key] = asText(tag.Value)
	}
	out.failed = out.attributes["error"] == "true" || out.attributes["otel.status_code"] == "ERROR"
	if out.failed {
		out.message = failure(out.attributes, in.Logs)
	}
	return out
}

// failure is why a span failed: the description of its status, else the last exception that was recorded, else the
// type of the error.
func failure(attributes map[string]string, logs []jaegerLog) string {
	if text := attributes["otel.status_description"]; text != "" {
		return text
	}
	for i := len(logs) - 1; i >= 0; i-- {
		for _, field := range logs[i].Fields {
			if field.Key == "exception.message" {
				return asText(field.Value)
			}
		}
	}
	return attributes["error.type"]
}

// asText is the value of a tag, as text.
func asText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return strings.ToValidUTF8(v, "\uFFFD")
	default:
		return fmt.Sprint(v)
	}
}
