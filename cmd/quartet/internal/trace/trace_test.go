package trace

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	traceOne = "11111111111111111111111111111111"
	traceTwo = "22222222222222222222222222222222"
	// spanMade is the span of the container's creation.
	spanMade = "aaaaaaaaaaaaaaaa"

	begin = `
configmux source.read 0 0.6
  syncloop pod.sync 1.2 221
    syncloop sandbox 4.3 155.8 k8s.pod.name=hello-node-1 k8s.namespace.name=default
    syncloop container.create 161.1 10.3 id=aaaaaaaaaaaaaaaa
    syncloop container.start 171.4 48.6 k8s.pod.name=hello-node-1 k8s.namespace.name=default k8s.pod.uid=5d3c1b7e k8s.container.name=web
`
	event = "pleg lifecycle.event 217.4 4.3 id=bbbbbbbbbbbbbbbb parent=aaaaaaaaaaaaaaaa"
	ready = "syncloop status.update 222.4 0.1 id=cccccccccccccccc parent=bbbbbbbbbbbbbbbb quartet.ready=true"
	whole = begin + event + "\n" + ready
)

// container returns a container as pleg sees it, started at a time after noon in a trace.
func container(name string, after time.Duration, traceID, flags string) *lifecyclev1.Container {
	c := &lifecyclev1.Container{
		Id:        name,
		Name:      name,
		CreatedAt: timestamppb.New(noon.Add(after)),
		StartedAt: timestamppb.New(noon.Add(after)),
	}
	if traceID != "" {
		c.Annotations = map[string]string{telemetry.AnnotationTraceparent: "00-" + traceID + "-" + spanMade + "-" + flags}
	}
	return c
}

// knows sets the containers of the pod that the node knows.
func (f *fixture) setContainers(containers ...*lifecyclev1.Container) {
	f.err = nil
	f.located = show.Located{
		Namespace: "default",
		Name:      "hello-node-1",
		UID:       "5d3c1b7e",
		Status:    &lifecyclev1.PodStatus{Containers: containers},
	}
}

func (f *fixture) must(args ...string) (out, notes string) {
	f.t.Helper()
	out, notes, err := f.run(args...)
	if err != nil {
		f.t.Fatal(err)
	}
	return out, notes
}

func (f *fixture) wants(text, part string) {
	f.t.Helper()
	if !strings.Contains(text, part) {
		f.t.Errorf("want %q in:\n%s", part, text)
	}
}

func (f *fixture) fails(part string, args ...string) {
	f.t.Helper()
	_, _, err := f.run(args...)
	if err == nil || !strings.Contains(err.Error(), part) {
		f.t.Errorf("quartet trace %s: got %v, want %q", strings.Join(args, " "), err, part)
	}
}

func TestTheNodeSaysWhichTraceItIs(t *testing.T) {
	f := newFixture(t)
	f.jaeger.put(t, traceOne, whole)
	f.jaeger.put(t, traceTwo, strings.ReplaceAll(whole, "source.read", "lifecycle.event"))
	f.setContainers(container("web", time.Minute, traceTwo, "01"), container("init", 0, traceOne, "01"))
	out, notes := f.must("hello")
	f.wants(out, "trace    "+traceTwo)
	f.wants(out, "Jaeger   "+f.jaeger.URL+"/trace/"+traceTwo)
	f.wants(out, "Ready    after 222.5 ms")
	if notes != "" {
		t.Errorf("told %q, want nothing", notes)
	}
	out, _ = f.must("hello", "-c", "init")
	f.wants(out, "trace    "+traceOne)
}

func TestALaterStartWithoutATraceIsReported(t *testing.T) {
	f := newFixture(t)
	f.jaeger.put(t, traceOne, whole)
	f.setContainers(container("web", time.Minute, "", ""), container("web", 0, traceOne, "01"))
	out, notes := f.must("hello")
	f.wants(out, "trace    "+traceOne)
	f.wants(notes, "this is not the last start: container web was started later, at 2026-05-01 12:01:00, and not traced")
}

func TestWithoutANodeJaegerIsSearched(t *testing.T) {
	f := newFixture(t)
	f.jaeger.put(t, traceOne, whole)
	f.jaeger.put(t, traceTwo, strings.ReplaceAll(strings.ReplaceAll(whole, "171.4", "171.5"), "=web", "=side"))
	out, notes := f.must("hello-node-1")
	f.wants(out, "trace    "+traceTwo)
	f.wants(out, "uid      5d3c1b7e")
	f.wants(notes, "so Jaeger is searched: cannot reach pleg")
	out, _ = f.must("default/hello-node-1", "-c", "web")
	f.wants(out, "trace    "+traceOne)
	f.fails("there is no trace of a start of pod default/hello", "hello-node-1", "-c", "nobody")
	f.fails("there is no trace of a start of pod other/hello", "hello-node-1", "-n", "other")
}

func TestTheNameOfTheNodeMayBeLeftOutWithoutANode(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	f := newFixture(t)
	f.jaeger.put(t, traceOne, strings.ReplaceAll(whole, "hello-node-1", "hello-"+strings.ToLower(host)))
	out, _ := f.must("hello")
	f.wants(out, "pod      hello-"+strings.ToLower(host))
}

func TestASearchThatFails(t *testing.T) {
	f := newFixture(t)
	f.jaeger.answer = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"data":null,"errors":[{"code":500,"msg":"the store is full"}]}`, http.StatusInternalServerError)
	}
	f.fails(`it answers "the store is full"`, "hello-node-1")
}

// The start of a pod that never had a container is found, too.
func TestAStartThatFailedIsFound(t *testing.T) {
	f := newFixture(t)
	f.jaeger.put(t, traceOne, `syncloop pod.sync 0 100 error="sandbox: no network"
  syncloop sandbox 1 90 k8s.pod.name=hello-node-1 k8s.namespace.name=default error="no network"`)
	out, _ := f.must("hello-node-1")
	f.wants(out, "✗ sandbox: …")
	f.wants(out, "✗ no network")
	f.wants(out, "Ready    not in this trace")
}

func TestAPodThatIsGoneIsFoundByItsTrace(t *testing.T) {
	f := newFixture(t)
	f.err = &show.NoPodError{}
	f.jaeger.put(t, traceOne, whole)
	out, _ := f.must("hello-node-1")
	f.wants(out, "trace    "+traceOne)
}

func TestWhyThereIsNoTrace(t *testing.T) {
	f := newFixture(t)
	f.setContainers(container("web", 0, "", ""))
	f.fails(
		"container web was started without a trace at 2026-05-01 12:00:00: syncloop had no OTEL_EXPORTER_OTLP_ENDPOINT then",
		"hello",
	)
	f.setContainers(container("web", 0, traceOne, "00"))
	f.fails("was left out by sampling: see OTEL_TRACES_SAMPLER", "hello")
	f.setContainers(container("web", 0, traceOne, "01"))
	f.fails("has Jaeger been restarted", "hello")
	f.fails(
		`no container "side" of pod default/hello-node-1 has been created: leave out -c to see how far the pod got, or name one of web`,
		"hello",
		"-c",
		"side",
	)
	f.setContainers()
	f.fails("nothing of it has been created yet", "hello")
	f.located.Status = nil
	f.fails("pleg does not know the pod", "hello")
}

func TestWhatJaegerAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"a web page": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("<!doctype html>"))
		}, "answers with a web page, not with the API of Jaeger"},
		"its own error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"httpCode":500,"message":"the store is full"}}`, http.StatusInternalServerError)
		}, `it answers "the store is full"`},
		"a proxy's error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no upstream\nat all", http.StatusBadGateway)
		}, `answers 502 Bad Gateway: "no upstream"`},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }, "is it Jaeger's query service (port 16686)?"},
		"no trace": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"result":{"resourceSpans":[]}}`))
		}, "has Jaeger been restarted"},
		"a broken span": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"result":{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":""}]}]}]}}`))
		}, "without an id"},
		"no OTLP": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"result":{"resourceSpans":1}}`)) }, "the answer is not OTLP"},
		"a span of 300 years": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"result":{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"aaaa","endTimeUnixNano":"9223372036854775807"}]}]}]}}`))
		}, "which are no times"},
		"too much": {func(w http.ResponseWriter, _ *http.Request) {
			blanks := []byte(strings.Repeat(" ", 1<<20))
			for range bodyLimit>>20 + 1 {
				if _, err := w.Write(blanks); err != nil {
					return
				}
			}
		}, "answers with more than 64 MiB: look at the trace in its user interface"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.jaeger.answer = test.answer
			f.setContainers(container("web", 0, traceOne, "01"))
			f.fails(test.want, "hello")
		})
	}
}

func TestBadArguments(t *testing.T) {
	f := newFixture(t)
	f.jaeger.Close()
	f.setContainers(container("web", 0, traceOne, "01"))
	f.fails(
		"cannot reach Jaeger at http://user:xxxxx@127.0.0.1:1: dial tcp",
		"hello",
		"--jaeger",
		"http://user:secret@127.0.0.1:1",
	)
	f.fails("start it (the compose stack has one), or give its address with --jaeger or QUARTET_JAEGER", "hello")
	f.fails(
		`"127.0.0.1:16686" is not the address of a Jaeger: write it as http://127.0.0.1:16686`,
		"hello",
		"--jaeger",
		"127.0.0.1:16686",
	)
	f.fails("give a time that is not negative", "hello", "--wait", "-1s")
	f.fails("must be json", "hello", "-o", "yaml")
	f.fails("name a pod: quartet trace POD")
	f.fails("name one pod, not 2", "one", "two")
}

func TestAJaegerBelowAPath(t *testing.T) {
	j, err := newJaeger("https://name:secret@example.test/jaeger/", http.DefaultClient)
	if err != nil || j.link(traceOne) != "https://example.test/jaeger/trace/"+traceOne {
		t.Errorf("link() = %q, %v, want %q", j.link(traceOne), err, "https://example.test/jaeger/trace/"+traceOne)
	}
}

func TestSpansThatAreStillToComeAreWaitedFor(t *testing.T) {
	f := newFixture(t)
	f.clock.SetTime(noon.Add(time.Second))
	f.setContainers(container("web", 0, traceOne, "01"))
	// The spans that arrive with each note.
	arrivals := []string{begin, ready, event}
	f.onNote = func(string) {
		f.jaeger.put(t, traceOne, arrivals[0])
		arrivals = arrivals[1:]
		f.clock.Step(pollInterval)
	}
	out, notes := f.must("hello")
	f.wants(out, "Ready    after 222.5 ms")
	if strings.Contains(out, "orphans") {
		t.Errorf("it did not wait for the parent of the last span:\n%s", out)
	}
	f.wants(notes, "waiting up to 10s for the rest of the trace: 0 spans so far\n")
	f.wants(notes, "waiting up to 9s for the rest of the trace: 6 spans so far\n")
}

func TestWhatIsThereIsShownWhenTheWaitIsOver(t *testing.T) {
	f := newFixture(t)
	f.clock.SetTime(noon.Add(time.Second))
	f.setContainers(container("web", 0, traceOne, "01"))
	f.jaeger.put(t, traceOne, begin)
	f.onNote = func(string) { f.clock.Step(2 * time.Second) }
	out, notes := f.must("hello", "--wait", "2s")
	f.wants(out, "container.start")
	f.wants(notes, "waiting up to 2s")
	// The command does not wait for an old start, or when waiting is turned off.
	f.onNote = func(note string) { t.Errorf("note %q, want no note", note) }
	f.must("hello", "--wait", "0")
	f.clock.SetTime(noon.Add(11 * time.Second))
	f.must("hello")
}

func TestWaitingIsCutShort(t *testing.T) {
	f := newFixture(t)
	f.clock.SetTime(noon)
	f.setContainers(container("web", 0, traceOne, "01"))
	ctx, cancel := context.WithCancel(t.Context())
	f.onNote = func(string) { cancel() }
	if _, _, err := f.runWith(ctx, "hello"); !errors.Is(err, context.Canceled) {
		t.Errorf("runWith(hello) error = %v, want %v", err, context.Canceled)
	}
}

func TestJSON(t *testing.T) {
	f := newFixture(t)
	f.jaeger.put(t, traceOne, whole+"\nconfigmux later 400 1\nconfigmux lost 5 1 parent=gone link=2222 error=\"why\"")
	f.setContainers(container("web", 0, traceOne, "01"))
	out, _ := f.must("hello", "-o", "json")
	out = strings.ReplaceAll(out, f.jaeger.URL, "http://jaeger")
	want, err := os.ReadFile("testdata/start.json")
	if *update {
		err = os.WriteFile("testdata/start.json", []byte(out), 0o644)
		want = []byte(out)
	}
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != out {
		t.Errorf("testdata/start.json differs from:\n%s", out)
	}
}

func TestStyle(t *testing.T) {
	for _, test := range []struct {
		env  map[string]string
		want style
	}{
		{map[string]string{"LANG": "de_DE.UTF-8", "TERM": "xterm"}, style{width: plainWidth, color: true}},
		{map[string]string{"LC_ALL": "C", "LANG": "de_DE.UTF-8", "TERM": "xterm"}, style{width: plainWidth, ascii: true, color: true}},
		{map[string]string{"LC_CTYPE": "C.utf8", "LANG": "C", "TERM": "xterm", "NO_COLOR": "1"}, style{width: plainWidth}},
		{map[string]string{"TERM": "dumb", "COLUMNS": "70"}, style{width: 70, ascii: true}},
		{map[string]string{"COLUMNS": "-1"}, style{width: plainWidth, ascii: true}},
	} {
		if got := chooseStyle(func(name string) string { return test.env[name] }); got != test.want {
			t.Errorf("%v: got %+v, want %+v", test.env, got, test.want)
		}
	}
}

func TestControlCharactersDoNotReachTheTerminal(t *testing.T) {
	if got := oneLine("a\x1b[31m\r\n b\x00\u009bc\x7f"); got != "a [31m b c" {
		t.Errorf("oneLine() = %q, want %q", got, "a [31m b c")
	}
}
