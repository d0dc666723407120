package trace

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
)

// fakeJaeger serves Jaeger's query API from memory.
type fakeJaeger struct {
	*httptest.Server
	mu       sync.Mutex
	traces   map[string][]*span
	requests []string
	// answer replaces the API when it is set.
	answer http.HandlerFunc
}

func newFakeJaeger(t *testing.T) *fakeJaeger {
	f := &fakeJaeger{traces: make(map[string][]*span)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v3/traces/{id}", f.one)
	mux.HandleFunc("GET /api/traces", f.search)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.URL.Path)
		answer := f.answer
		f.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

// put adds spans to a trace.
func (f *fakeJaeger) put(t *testing.T, id, spans string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.traces[id] = append(f.traces[id], parse(t, spans).spans...)
}

func (f *fakeJaeger) one(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := r.PathValue("id")
	if len(f.traces[id]) == 0 {
		// As the real one does: its error handler takes the JSON as text.
		http.Error(w, `{"error":{"httpCode":404,"message":"trace not found"}}`, http.StatusNotFound)
		return
	}
	result, err := protojson.Marshal(encode(id, f.traces[id]))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	reply(w, map[string]any{"result": json.RawMessage(result)})
}

func (f *fakeJaeger) search(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var tags map[string]string
	if err := json.Unmarshal([]byte(r.FormValue("tags")), &tags); err != nil || r.FormValue("service") == "" {
		http.Error(w, `{"errors":[{"code":400,"msg":"malformed 'tags' parameter"}]}`, http.StatusBadRequest)
		return
	}
	found := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(f.traces)) {
		if slices.ContainsFunc(f.traces[id], func(s *span) bool {
			return s.service == r.FormValue("service") &&
				(r.FormValue("operation") == "" || s.name == r.FormValue("operation")) &&
				has(s.attributes, tags)
		}) {
			found = append(found, map[string]any{"traceID": id})
		}
	}
	reply(w, map[string]any{"data": found})
}

func reply(w http.ResponseWriter, answer map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// encode returns Jaeger's answer for some spans.
func encode(id string, spans []*span) *tracev1.TracesData {
	data := &tracev1.TracesData{}
	for _, s := range spans {
		out := &tracev1.Span{
			TraceId:           idOf(id),
			SpanId:            idOf(s.id),
			ParentSpanId:      idOf(s.parent),
			Name:              s.name,
			Attributes:        attributesOf(s.attributes),
			StartTimeUnixNano: uint64(s.start.UnixNano()),
			EndTimeUnixNano:   uint64(s.end.UnixNano()),
		}
		for _, link := range s.links {
			out.Links = append(out.Links, &tracev1.Span_Link{TraceId: idOf(link), SpanId: idOf("1111111111111111")})
		}
		if s.failed {
			out.Status = &tracev1.Status{Code: tracev1.Status_STATUS_CODE_ERROR, Message: s.message}
		}
		data.ResourceSpans = append(data.ResourceSpans, &tracev1.ResourceSpans{
			Resource:   &resourcev1.Resource{Attributes: attributesOf(map[string]string{"service.name": s.service})},
			ScopeSpans: []*tracev1.ScopeSpans{{Spans: []*tracev1.Span{out}}},
		})
	}
	return data
}

// idOf returns the bytes of an id whose protobuf JSON form equals OTLP's.
func idOf(text string) []byte {
	id, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		panic(err)
	}
	return id
}

func attributesOf(texts map[string]string) (out []*commonv1.KeyValue) {
	for key, value := range texts {
		out = append(
			out,
			&commonv1.KeyValue{Key: key, Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: value}}},
		)
	}
	return out
}

// fixture runs the command with fakes.
type fixture struct {
	t      *testing.T
	jaeger *fakeJaeger
	clock  *clocktesting.FakeClock
	// located is the answer of the node; err is its error.
	located show.Located
	err     error
	// onNote is called with each line that is printed beside the result.
	onNote func(string)
}

func newFixture(t *testing.T) *fixture {
	return &fixture{
		t:      t,
		jaeger: newFakeJaeger(t),
		clock:  clocktesting.NewFakeClock(noon.Add(3 * time.Minute)),
		err:    errors.New("cannot reach pleg: is the node running?"),
	}
}

// run runs the command with some arguments.
func (f *fixture) run(args ...string) (out, notes string, err error) {
	return f.runWith(f.t.Context(), args...)
}

func (f *fixture) runWith(ctx context.Context, args ...string) (out, notes string, err error) {
	c := &command{
		clock: f.clock, http: f.jaeger.Client(),
		locate: func(context.Context, target.Node, string, string) (show.Located, error) { return f.located, f.err },
		style:  func(io.Writer) style { return style{width: 100} },
	}
	cmd := newCommand(c)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if !slices.Contains(args, "--jaeger") {
		args = append(args, "--jaeger", f.jaeger.URL)
	}
	cmd.SetArgs(args)
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(noteWriter{&stderr, f.onNote})
	err = cmd.ExecuteContext(ctx)
	return stdout.String(), stderr.String(), err
}

type noteWriter struct {
	buffer *bytes.Buffer
	on     func(string)
}

// Write implements io.Writer.
func (w noteWriter) Write(p []byte) (int, error) {
	if w.on != nil {
		w.on(strings.TrimSpace(string(p)))
	}
	return w.buffer.Write(p)
}
