package configmux

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

func TestFromManifestToStream(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	next := p.watch(nil)
	expect(t, next, "OPENED", "SNAPSHOT source file ready=true", "SYNCED")

	p.write("a.yaml", manifest("a", "a1", "i:1"))
	expect(t, next, "DELTA ADD a-node i:1", "DELTA source file ready=true")
	p.write("a.yaml", manifest("a", "a1", "i:2"))
	expect(t, next, "DELTA UPDATE a-node i:2", "DELTA source file ready=true")
	must(t, os.Remove(filepath.Join(p.dir, "a.yaml")))
	expect(t, next, "DELTA REMOVE a-node i:2", "DELTA source file ready=true")

	// Without a UID in the manifest a changed one is another pod, and the old one is removed first.
	p.write("b.yaml", manifest("b", "", "i:1"))
	expect(t, next, "DELTA ADD b-node i:1", "DELTA source file ready=true")
	p.write("b.yaml", manifest("b", "", "i:2"))
	expect(t, next, "DELTA REMOVE b-node i:1", "DELTA ADD b-node i:2", "DELTA source file ready=true")
}

// The trace of a change has all of its path through this process, and the context that is sent along is its last step.
func TestTraceOfAManifest(t *testing.T) {
	p := newProcess(t)
	spans := tracetest.NewInMemoryExporter()
	p.tel.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("")
	p.run()
	p.ready()
	next := p.watch(nil)
	expect(t, next, "OPENED", "SNAPSHOT source file ready=true", "SYNCED")
	p.write("a.yaml", manifest("a", "a1", "i:1"))
	added := next().GetPod().GetTraceparent()
	expect(t, next, "DELTA source file ready=true")
	must(t, os.Remove(filepath.Join(p.dir, "a.yaml")))
	removed := next().GetPod().GetTraceparent()
	for what, traceparent := range map[string]string{"addition": added, "removal": removed} {
		publish := trace.SpanContextFromContext(telemetry.WithTraceparent(t.Context(), traceparent))
		var path []string
		for id := publish.SpanID(); id.IsValid(); {
			// A span is exported when it ends, which may be a moment after the change was sent.
			span := p.span(spans, publish.TraceID(), id)
			path, id = append(path, span.Name), span.Parent.SpanID()
			if span.Name == "source.read" {
				want := []attribute.KeyValue{
					attribute.String("file.path", filepath.Join(p.dir, "a.yaml")), attribute.String("quartet.source", "file"),
				}
				if !slices.Equal(span.Attributes, want) {
					t.Errorf("%s: the reading has the attributes %v, want %v", what, span.Attributes, want)
				}
			}
		}
		if want := []string{"publish", "merge", "source.read"}; !slices.Equal(path, want) {
			t.Errorf("%s: the trace is %v, want %v", what, path, want)
		}
	}
	if added[:35] == removed[:35] {
		t.Error("the removal is of the same trace as the addition")
	}
}

func TestPodsOfTheFirstReadingComeBeforeTheirSource(t *testing.T) {
	p := newProcess(t)
	for i := range 20 {
		p.write(fmt.Sprintf("%02d.yaml", i), manifest(fmt.Sprintf("p%02d", i), "", "i"))
	}
	p.run()
	// A subscriber that sees the source as ready has all its pods, however early it subscribed.
	next, pods := p.watch(nil), 0
	for m := next(); !m.GetSource().GetReady(); m = next() {
		if m.GetPod() != nil {
			pods++
		}
	}
	if pods != 20 {
		t.Errorf("%d pods came before their source was ready, want 20", pods)
	}
}

func TestResumeGivesOnlyWhatWasMissed(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "a1", "i:1"))
	p.write("b.yaml", manifest("b", "b1", "i:1"))
	p.run()
	p.ready()
	token := expect(t, p.watch(nil), "OPENED", "SNAPSHOT ADD a-node i:1", "SNAPSHOT ADD b-node i:1",
		"SNAPSHOT source file ready=true", "SYNCED")
	follow := p.watch(token)
	expect(t, follow, "OPENED")
	p.write("a.yaml", manifest("a", "a1", "i:2"))
	expect(t, follow, "DELTA UPDATE a-node i:2", "DELTA source file ready=true")
	must(t, os.Remove(filepath.Join(p.dir, "b.yaml")))
	expect(t, follow, "DELTA REMOVE b-node i:1", "DELTA source file ready=true")

	again := p.watch(token)
	if m := again(); m.GetFrame().GetOpening().GetStart() != streamv1.Start_START_RESUMED {
		t.Errorf("start %v, want RESUMED", m.GetFrame().GetOpening().GetStart())
	}
	expect(t, again, "DELTA UPDATE a-node i:2", "DELTA REMOVE b-node i:1", "DELTA source file ready=true")
}

// A subscriber sees each change once across restarts, and no other changes.
func TestARestartChangesNothingForAFollower(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "", "i:1"))
	p.write("b.yaml", manifest("b", "b1", "i:1"))
	p.run()
	f := follow(p)
	f.until("ADD a-node i:1", "ADD b-node i:1")

	p.stop()
	p.run()
	f.untilSynced(2)
	p.stop()
	p.write("a.yaml", manifest("a", "", "i:2"))
	p.write("b.yaml", manifest("b", "b1", "i:2"))
	p.run()
	f.until("ADD a-node i:1", "ADD b-node i:1", "UPDATE b-node i:2", "ADD a-node i:2", "REMOVE a-node i:1")
}

func TestABadFileBesideAGoodOneIsListed(t *testing.T) {
	p := newProcess(t)
	p.write("good.yaml", manifest("good", "", "i:1"))
	p.write("bad.yaml", manifest("bad", "", "''"))
	p.run()
	p.ready()
	pods, err := p.client.ListPods(t.Context(), &configv1.ListPodsRequest{})
	must(t, err)
	if len(pods.GetPods()) != 1 || pods.GetPods()[0].GetSource() != "file" ||
		pods.GetPods()[0].GetOp() != configv1.Op_OP_ADD {
		t.Fatalf("pods %v, want the good one", pods.GetPods())
	}
	if name := decode(t, pods.GetPods()[0]).Name; name != "good-node" {
		t.Errorf("pod %s, want good-node", name)
	}
	listed, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
	must(t, err)
	if len(listed.GetSources()) != 2 {
		t.Fatalf("sources %v, want file and local", listed.GetSources())
	}
	s := listed.GetSources()[0]
	if s.GetName() != "file" || s.GetTarget() != p.dir || !s.GetReady() || s.GetPods() != 1 || s.GetMode() != "inotify" ||
		s.GetLastReadAt() == nil {
		t.Errorf("source %v, want Name %q, Target %v, Ready true, Pods 1, Mode %q and LastReadAt set",
			s, "file", p.dir, "inotify")
	}
	if len(s.GetErrors()) != 1 {
		t.Fatalf("errors %v, want exactly one", s.GetErrors())
	}
	e := s.GetErrors()[0]
	if e.GetPath() != filepath.Join(p.dir, "bad.yaml") || e.GetPod() != "default/bad-node" ||
		e.GetField() != "spec.containers[0].image" || e.GetCount() != 1 || e.GetFirstSeenAt() == nil {
		t.Errorf("error %v, want Path %v, Pod %q, Field %q, Count 1 and FirstSeenAt set",
			e, filepath.Join(p.dir, "bad.yaml"), "default/bad-node", "spec.containers[0].image")
	}
}

func TestAFileWhoseNameIsNoTextIsListedToo(t *testing.T) {
	p := newProcess(t)
	p.write("good.yaml", manifest("good", "", "i:1"))
	p.write("bad\xff.yaml", "{")
	p.run()
	p.ready()
	listed, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
	must(t, err)
	if s := listed.GetSources()[0]; len(s.GetErrors()) != 1 ||
		s.GetErrors()[0].GetPath() != filepath.Join(p.dir, "bad\uFFFD.yaml") ||
		s.GetPods() != 1 {
		t.Errorf("source %v, want the good pod and the error of the other file", s)
	}
}

func TestHealthWaitsForTheFirstReadingOnly(t *testing.T) {
	p := newProcess(t)
	p.cfg.Kubelet.StaticPodPath = filepath.Join(p.dir, "loop")
	must(t, os.Symlink("loop", p.cfg.Kubelet.StaticPodPath)) // the path is unreadable, so the source cannot be ready
	p.run()
	health := grpc_health_v1.NewHealthClient(p.conn)
	check := func(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
		t.Helper()
		got, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		must(t, err)
		return got.GetStatus()
	}
	if got := check(""); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("the process is %v, want SERVING from the start", got)
	}
	if got := check("source/file"); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the source is %v, want NOT_SERVING", got)
	}
	must(t, os.Remove(p.cfg.Kubelet.StaticPodPath))
	p.ready()
	if got := check("source/file"); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("the source is %v, want SERVING", got)
	}
}

func TestTwoOnOneStateDirectory(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	err := run(t.Context(), p.cfg, p.tel)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("configmux with pid %d", os.Getpid())) {
		t.Errorf("the second one: %v, want an error that names the holder", err)
	}
}

func TestANodeWithoutSourcesIsSynced(t *testing.T) {
	p := newProcess(t)
	p.cfg.Kubelet.StaticPodPath = ""
	p.run()
	expect(t, p.watch(nil), "OPENED", "SYNCED")
}
