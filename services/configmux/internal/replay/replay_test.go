package replay

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/recording"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is the begin of the tests' recordings.
var recorded = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

type update = configv1.WatchPodUpdatesResponse

func opened(start streamv1.Start) *update {
	return &update{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_OPENED, Opening: &streamv1.Opening{Start: start}}}
}

func synced() *update { return &update{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SYNCED}} }

func snapshot(u *update) *update {
	u.Frame.Kind = streamv1.Kind_KIND_SNAPSHOT
	return u
}

func ready(is bool) *update {
	return &update{
		Frame:   &streamv1.Frame{Kind: streamv1.Kind_KIND_DELTA, Key: "source/file"},
		Payload: &configv1.WatchPodUpdatesResponse_Source{Source: &configv1.SourceState{Name: "file", Ready: is}},
	}
}

func put(name string) *update {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
	data, err := pod.Marshal()
	if err != nil {
		panic(err)
	}
	return &update{
		Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_DELTA, Key: name},
		Payload: &configv1.WatchPodUpdatesResponse_Pod{
			Pod: &configv1.PodUpdate{Source: "file", Pod: data, Traceparent: traceparent},
		},
	}
}

func gone(name string) *update {
	u := put(name)
	u.Frame.Removed = true
	return u
}

// record writes a recording with messages, each preceded by its time after the begin.
func record(t *testing.T, messages ...any) string {
	t.Helper()
	var out bytes.Buffer
	w, err := recording.NewWriter(&out, recorded)
	must(t, err)
	at := recorded
	for _, m := range messages {
		switch m := m.(type) {
		case time.Duration:
			at = at.Add(m)
		case *update:
			must(t, w.Write(at, m))
		}
	}
	must(t, w.End(at))
	path := filepath.Join(t.TempDir(), "updates.jsonl")
	must(t, os.WriteFile(path, out.Bytes(), 0o600))
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// replayed is a running source with its readings.
type replayed struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	given chan string
	stop  func() error
}

// Set implements source.Sink.
func (r *replayed) Set(_ string, reading source.Reading) {
	var names []string
	for _, p := range reading.Pods {
		names = append(names, p.Name)
	}
	r.given <- fmt.Sprintf("%s %v", reading.Mode, names)
}

func start(t *testing.T, cfg Config) *replayed {
	t.Helper()
	r := &replayed{t: t, clock: clocktesting.NewFakeClock(recorded.AddDate(1, 0, 0)), given: make(chan string, 100)}
	if cfg.Tracer == nil {
		cfg.Tracer = sdktrace.NewTracerProvider().Tracer("")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Clock = r.clock
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(cfg).Run(ctx, r) }()
	r.stop = func() error {
		cancel()
		return <-done
	}
	return r
}

func (r *replayed) expect(want ...string) {
	r.t.Helper()
	for _, w := range want {
		select {
		case got := <-r.given:
			if got != w {
				r.t.Errorf("gave %q, want %q", got, w)
			}
		case <-time.After(60 * time.Second):
			r.t.Fatalf("waited for %q", w)
		}
	}
}

// waits is true once the source waits for its clock.
func (r *replayed) waits() {
	r.t.Helper()
	deadline := time.After(60 * time.Second)
	for !r.clock.HasWaiters() {
		select {
		case <-deadline:
			r.t.Fatal("it does not wait")
		default:
			runtime.Gosched()
		}
	}
}

// lines is a log that a test can wait for.
type lines struct{ to chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.to <- string(p)
	return len(p), nil
}

func TestTheOrderIsKept(t *testing.T) {
	r := start(t, Config{Path: record(t,
		opened(streamv1.Start_START_SNAPSHOT), snapshot(put("b")), snapshot(put("a")), snapshot(ready(true)), synced(),
		time.Hour, put("c"), ready(true), put("b"), gone("a"), opened(streamv1.Start_START_RESUMED), gone("c"),
	), Speed: 0})
	r.expect(
		"replaying [b a]",
		"replaying [b a c]",
		"replaying [a c b]",
		"replaying [c b]",
		"replaying [b]",
		"replayed to its end [b]",
	)
	must(t, r.stop())
}

func TestAStreamThatBeganAgainIsNoRemoval(t *testing.T) {
	r := start(t, Config{Path: record(t,
		opened(streamv1.Start_START_SNAPSHOT), snapshot(ready(true)), snapshot(put("a")), snapshot(put("b")), synced(),
		// The second snapshot is cut off by another lost connection.
		opened(streamv1.Start_START_SNAPSHOT_EPOCH), snapshot(put("a")),
		opened(streamv1.Start_START_SNAPSHOT_EPOCH), snapshot(put("a")), snapshot(put("c")), synced(),
	)})
	r.expect("replaying [a b]", "replaying [a c]", "replayed to its end [a c]")
	must(t, r.stop())
}

// A subscriber that gets a complete but empty set removes its pods.
func TestNothingIsSentBeforeASourceIsReady(t *testing.T) {
	r := start(t, Config{Path: record(t,
		opened(streamv1.Start_START_SNAPSHOT), snapshot(ready(false)), synced(), put("a"), put("b"), ready(true), put("c"),
	)})
	r.expect("replaying [a b]", "replaying [a b c]", "replayed to its end [a b c]")
	must(t, r.stop())

	// The whole of a recording in which no source is ready: the log has its end.
	log := &lines{to: make(chan string, 10)}
	r = start(t, Config{
		Path: record(
			t,
			opened(streamv1.Start_START_SNAPSHOT),
			snapshot(ready(false)),
			synced(),
			put("a"),
		),
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	for line := ""; !strings.Contains(line, "the recording has ended"); {
		line = <-log.to
	}
	must(t, r.stop())
	if len(r.given) != 0 {
		t.Errorf("gave %q, want no r.given", <-r.given)
	}
}

func TestThePaceIsKept(t *testing.T) {
	for speed, step := range map[float64]time.Duration{1: time.Minute, 60: time.Second, 0.5: 2 * time.Minute} {
		r := start(t, Config{Speed: speed, Path: record(t,
			opened(streamv1.Start_START_SNAPSHOT), snapshot(ready(true)), synced(), time.Minute, put("a"), time.Minute, put("b"),
			// The clock of the recorded node is set back.
			-time.Hour, put("c"),
		)})
		r.expect("replaying []")
		for _, want := range []string{"replaying [a]", "replaying [a b]"} {
			r.waits()
			r.clock.Step(step - time.Millisecond)
			if len(r.given) != 0 {
				t.Errorf("at %v times its speed: gave %q too early", speed, <-r.given)
			}
			r.waits()
			r.clock.Step(time.Millisecond)
			r.expect(want)
		}
		r.expect("replaying [a b c]", "replayed to its end [a b c]")
		must(t, r.stop())
	}
}

func TestAReplayEndsWhileItWaits(t *testing.T) {
	r := start(
		t,
		Config{
			Speed: 1e-300,
			Path:  record(t, opened(streamv1.Start_START_SNAPSHOT), snapshot(ready(true)), synced(), time.Hour, put("a")),
		},
	)
	r.expect("replaying []")
	r.waits()
	must(t, r.stop())
}

func TestADamagedRecordingGivesNothing(t *testing.T) {
	path := record(t, opened(streamv1.Start_START_SNAPSHOT), snapshot(ready(true)), synced(), put("a"))
	data, err := os.ReadFile(path)
	must(t, err)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		return filepath.Join(dir, name)
	}
	for want, path := range map[string]string{
		"half:5: the line is cut off":              write("half", data[:bytes.LastIndex(data, []byte("traceparent"))]),
		"other:1: the recording is of version 9":   write("other", bytes.Replace(data, []byte(`"version":1`), []byte(`"version":9`), 1)),
		"binary:1: this is no recording":           write("binary", []byte("\x7fELF\x00\x00")),
		"long:7: the line has more than 32 MiB":    write("long", append(data[:len(data):len(data)], bytes.Repeat([]byte("x"), 100<<20)...)),
		"no such file or directory":                filepath.Join(dir, "no"),
		"is no regular file: name a file that":     dir,
		"open the recording of --replay: open /no": "/no/file",
	} {
		r := &replayed{t: t, given: make(chan string, 10)}
		err := New(Config{Path: path, Logger: slog.New(slog.DiscardHandler)}).Run(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if len(r.given) != 0 {
			t.Errorf("%s: gave %q, want no r.given", want, <-r.given)
		}
	}
}

func TestTheTraceLinksToTheRecordedOne(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	path := record(t, opened(streamv1.Start_START_SNAPSHOT), snapshot(ready(true)), synced(), put("a"))
	r := start(t, Config{Path: path, Tracer: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("")})
	r.expect("replaying []", "replaying [a]", "replayed to its end [a]")
	must(t, r.stop())
	all := spans.GetSpans()
	if len(all) != 2 || all[1].Name != "source.read" {
		t.Fatalf("spans %v, want one for the snapshot and one for the pod", all)
	}
	if got := fmt.Sprint(all[1].Attributes); got != fmt.Sprint(
		[]attribute.KeyValue{attribute.String("file.path", path+":5"), attribute.String("quartet.source", "replay")},
	) {
		t.Errorf("attributes %s, want %s",
			got,
			fmt.Sprint(
				[]attribute.KeyValue{attribute.String("file.path", path+":5"), attribute.String("quartet.source", "replay")},
			))
	}
	if links := all[1].Links; len(links) != 1 ||
		links[0].SpanContext.TraceID().String() != "4bf92f3577b34da6a3ce929d0e0e4736" {
		t.Errorf("links %v, want one to the recorded trace", links)
	}
}
