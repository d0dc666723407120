package trace

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// span is one step of a trace.
type span struct {
	// id and parent are span IDs; parent is empty for a root.
	id, parent    string
	service, name string
	start, end    time.Time
	// attributes are the attributes as text.
	attributes map[string]string
	failed     bool
	// message is why it failed; it may be empty.
	message string
	// links are the IDs of linked traces, except its own.
	links []string
}

// duration returns the duration of the span.
func (s *span) duration() time.Duration { return s.end.Sub(s.start) }

// trace is one trace in Jaeger.
type trace struct {
	id    string
	spans []*span
}

// maxDuration keeps what is computed with durations from overflowing.
const maxDuration = 100 * 365 * 24 * time.Hour

// decode reads an answer of version 3 of Jaeger's query API: OTLP in JSON, or an error, which is returned as a
// *reportedError.
func decode(data []byte) ([]trace, error) {
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code    int    `json:"httpCode"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("the answer is not the JSON of Jaeger's query API: %w", err)
	}
	if answer.Error != nil {
		return nil, &reportedError{code: answer.Error.Code, message: answer.Error.Message}
	}
	if len(answer.Result) == 0 || string(answer.Result) == "null" {
		return nil, nil
	}
	var traces tracev1.TracesData
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(answer.Result, &traces); err != nil {
		return nil, fmt.Errorf("the answer is not OTLP: %w", err)
	}
	return group(&traces)
}

// decodeIDs reads an answer of version 1 of Jaeger's query API, of which only the ids of the traces are needed. An
// error in it is returned as a *reportedError.
func decodeIDs(data []byte) ([]string, error) {
	var answer struct {
		Data []struct {
			ID string `json:"traceID"`
		} `json:"data"`
		Errors []struct {
			Code    int    `json:"code"`
			Message string `json:"msg"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("the answer is not the JSON of Jaeger's query API: %w", err)
	}
	// A search can report an error for one trace beside the others.
	if len(answer.Data) == 0 && len(answer.Errors) > 0 {
		return nil, &reportedError{code: answer.Errors[0].Code, message: answer.Errors[0].Message}
	}
	ids := make([]string, 0, len(answer.Data))
	for _, t := range answer.Data {
		ids = append(ids, t.ID)
	}
	return ids, nil
}

// reportedError is an error in Jaeger's words.
type reportedError struct {
	code    int
	message string
}

// Error implements error.
func (e *reportedError) Error() string { return fmt.Sprintf("it answers %q", e.message) }

// group sorts spans into traces, in the order in which the first span of each comes.
func group(data *tracev1.TracesData) ([]trace, error) {
	var traces []trace
	at := map[string]int{}
	known := map[[2]string]bool{}
	for _, resource := range data.GetResourceSpans() {
		service := texts(resource.GetResource().GetAttributes())[string(semconv.ServiceNameKey)]
		for _, scope := range resource.GetScopeSpans() {
			for _, in := range scope.GetSpans() {
				id := hexOf(in.GetTraceId())
				out, err := convert(id, service, in)
				if err != nil {
					return nil, err
				}
				// A service that does not know that its spans arrived sends them again.
				if known[[2]string{id, out.id}] {
					continue
				}
				known[[2]string{id, out.id}] = true
				if _, found := at[id]; !found {
					at[id] = len(traces)
					traces = append(traces, trace{id: id})
				}
				traces[at[id]].spans = append(traces[at[id]].spans, out)
			}
		}
	}
	return traces, nil
}

// hexOf returns an id as text. OTLP writes ids as hexadecimal digits where the JSON of protobuf has base64, so an id
// that was decoded as base64 is what it was when it is encoded again.
func hexOf(id []byte) string { return base64.StdEncoding.EncodeToString(id) }

// convert converts one span. Each other trace that it refers to is a link.
func convert(traceID, service string, in *tracev1.Span) (*span, error) {
	id, from, to := hexOf(in.GetSpanId()), in.GetStartTimeUnixNano(), in.GetEndTimeUnixNano()
	switch {
	case id == "":
		return nil, fmt.Errorf("trace %s has a span %q without an id", traceID, in.GetName())
	case from > math.MaxInt64 || to > math.MaxInt64 || to > from && to-from > uint64(maxDuration):
		return nil, fmt.Errorf(
			"trace %s: span %s (%s) is from %d to %d ns, which are no times",
			traceID,
			id,
			in.GetName(),
			from,
			to,
		)
	}
	out := &span{
		id:         id,
		parent:     hexOf(in.GetParentSpanId()),
		service:    service,
		name:       in.GetName(),
		attributes: texts(in.GetAttributes()),
		start:      time.Unix(0, int64(from)),
		end:        time.Unix(0, int64(max(from, to))),
		failed:     in.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR,
	}
	for _, link := range in.GetLinks() {
		if other := hexOf(link.GetTraceId()); other != traceID && other != "" {
			out.links = append(out.links, other)
		}
	}
	if out.failed {
		out.message = failure(in, out.attributes)
	}
	return out, nil
}

// failure returns why a span failed: the description of its status, or else the last recorded exception, or else the
// type of the error.
func failure(in *tracev1.Span, attributes map[string]string) string {
	if text := in.GetStatus().GetMessage(); text != "" {
		return text
	}
	events := in.GetEvents()
	for i := len(events) - 1; i >= 0; i-- {
		if text, found := texts(events[i].GetAttributes())[string(semconv.ExceptionMessageKey)]; found {
			return text
		}
	}
	return attributes[string(semconv.ErrorTypeKey)]
}

// texts returns attributes as text.
func texts(attributes []*commonv1.KeyValue) map[string]string {
	out := make(map[string]string, len(attributes))
	for _, a := range attributes {
		out[a.GetKey()] = asText(a.GetValue())
	}
	return out
}

// asText returns the value of an attribute as text; of a list or a map as JSON.
func asText(value *commonv1.AnyValue) string {
	switch v := value.GetValue().(type) {
	case nil:
		return ""
	case *commonv1.AnyValue_StringValue:
		return strings.ToValidUTF8(v.StringValue, "\uFFFD")
	case *commonv1.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	case *commonv1.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonv1.AnyValue_DoubleValue:
		return strconv.FormatFloat(v.DoubleValue, 'g', -1, 64)
	default:
		data, err := protojson.Marshal(value)
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
}
