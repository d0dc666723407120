package podworkers_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/test/eventually"
)

// The traceparents of two crashes.
const (
	crashA = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-aaaaaaaaaaaaaaaa-01"
	crashB = "00-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-bbbbbbbbbbbbbbbb-01"
)

// tracedRig is a rig whose spans are recorded, in the order in which they ended.
type tracedRig struct {
	*rig
	spans *tracetest.SpanRecorder
}

func startTraced(t *testing.T) tracedRig {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	r := tracedRig{rig: newTracedRig(fakenode.New(), 20*time.Millisecond, provider.Tracer("test")), spans: spans}
	t.Cleanup(r.stop)
	return r
}

// syncs returns the spans of syncs that were not idle.
func (r tracedRig) syncs() []sdktrace.ReadOnlySpan {
	return slices.DeleteFunc(r.spans.Ended(), func(s sdktrace.ReadOnlySpan) bool {
		return s.Name() != "pod.sync" || isIdle(s)
	})
}

func isIdle(s sdktrace.ReadOnlySpan) bool {
	attributes := attribute.NewSet(s.Attributes()...)
	return attributes.HasValue("quartet.idle")
}

func tryOf(s sdktrace.ReadOnlySpan) int64 {
	attributes := attribute.NewSet(s.Attributes()...)
	try, _ := attributes.Value("quartet.try")
	return try.AsInt64()
}

// parentOf returns the parent of a span as a traceparent.
func parentOf(s sdktrace.ReadOnlySpan) string {
	return "00-" + s.Parent().TraceID().String() + "-" + s.Parent().SpanID().String() + "-01"
}

func linksOf(s sdktrace.ReadOnlySpan) []string {
	var links []string
	for _, l := range s.Links() {
		links = append(links, "00-"+l.SpanContext.TraceID().String()+"-"+l.SpanContext.SpanID().String()+"-01")
	}
	return links
}

func TestWhatFollowsABackoffIsInTheTraceOfTheCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startTraced(t)
		r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
		eventually.That(t, "web runs", r.running("web"))
		r.node.SetScript(fakenode.Script{RetryAfter: 5 * time.Millisecond}) // a container waits for the end of its back-off
		r.pool.Poke("u1", podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: crashA})
		ofTheCrash := func() []sdktrace.ReadOnlySpan {
			return slices.DeleteFunc(r.syncs(), func(s sdktrace.ReadOnlySpan) bool { return parentOf(s) != crashA })
		}
		eventually.That(t, "the worker comes back in the trace of the crash", func() bool { return len(ofTheCrash()) >= 3 })
		for i, s := range ofTheCrash()[:3] {
			if got := tryOf(s); got != int64(i+1) {
				t.Errorf("sync %d in the trace of the crash says that it is try %d", i+1, got)
			}
		}
		r.pool.Poke("u1", podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: crashB})
		eventually.That(t, "the worker comes back in the trace of the second crash, linked to the first", func() bool {
			return slices.ContainsFunc(r.syncs(), func(s sdktrace.ReadOnlySpan) bool {
				return parentOf(s) == crashB && tryOf(s) > 1 && slices.Contains(linksOf(s), crashA)
			})
		})
	})
}

// TestATraceOfFailuresEndsAndTheNextIsLinkedToIt: a pod whose image cannot be pulled for a week must not make a trace
// of a week.
func TestATraceOfFailuresEndsAndTheNextIsLinkedToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startTraced(t)
		r.node.SetScript(fakenode.Script{
			Sync: func(context.Context, *v1.Pod) error { return status.Error(codes.Internal, "no") },
		})
		pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
		r.store.SetPod(pod, "file", crashA)
		r.pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: crashA}, nil)
		var next sdktrace.ReadOnlySpan
		eventually.That(t, "a second trace", func() bool {
			i := slices.IndexFunc(r.syncs(), func(s sdktrace.ReadOnlySpan) bool { return !s.Parent().IsValid() })
			if i >= 0 {
				next = r.syncs()[i]
			}
			return i >= 0
		})
		if diff := cmp.Diff([]string{crashA}, linksOf(next)); diff != "" {
			t.Errorf("links of the second trace's first span (-want +got):\n%s", diff)
		}
		first := 0
		for _, s := range r.syncs() {
			if parentOf(s) == crashA {
				first++
			}
			if s.Status().Description == "" {
				t.Error("the span of a failed sync has no error")
			}
		}
		if first != 10 {
			t.Errorf("the first trace has %d tries, want 10", first)
		}
		eventually.That(t, "the second trace goes on", func() bool {
			return slices.ContainsFunc(r.syncs(), func(s sdktrace.ReadOnlySpan) bool {
				return s.Parent().SpanID() == next.SpanContext().SpanID()
			})
		})
	})
}

func TestARegularLookThatFindsNothingIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startTraced(t)
		r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
		idle := func() int {
			return len(slices.DeleteFunc(r.spans.Ended(), func(s sdktrace.ReadOnlySpan) bool { return !isIdle(s) }))
		}
		eventually.That(t, "it is synced again and again", func() bool { return idle() > 3 })
		parents := map[string]bool{}
		for _, s := range r.spans.Ended() {
			parents[s.Parent().SpanID().String()] = true
		}
		for _, s := range r.spans.Ended() {
			if isIdle(s) && (s.Parent().IsValid() || parents[s.SpanContext().SpanID().String()]) {
				t.Error("an idle span is not alone in its trace")
			}
		}
		settled := len(r.syncs())
		eventually.That(t, "it is synced again and again", func() bool { return idle() > 10 })
		if got := len(r.syncs()); got != settled {
			t.Errorf("%d more spans of syncs of an idle pod", got-settled)
		}
		r.node.Exit("u1", 1)
		observed, err := r.node.GetPodStatus(t.Context(), "u1", 0)
		if err != nil {
			t.Fatal(err)
		}
		r.store.Observe("u1", observed)
		eventually.That(t, "a sync that finds a change has a span", func() bool { return len(r.syncs()) > settled })
	})
}

func TestCrashesThatFoldAreBothLedTo(t *testing.T) {
	lost := func(traceparent string) podworkers.Update {
		return podworkers.Update{Cause: podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: traceparent}}
	}
	config := podworkers.Update{Cause: podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: "00-c"}}
	seen := podworkers.Update{Cause: podworkers.Cause{Kind: podworkers.CauseSeen, Traceparent: "00-s"}}
	for name, tc := range map[string]struct {
		updates []podworkers.Update
		want    podworkers.Cause
	}{
		"two crashes":               {[]podworkers.Update{lost(crashA), lost(crashB)}, podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: crashB, Also: []string{crashA}}},
		"one crash, reported twice": {[]podworkers.Update{lost(crashA), lost(crashA)}, podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: crashA}},
		"a crash and a change":      {[]podworkers.Update{lost(crashA), config}, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: "00-c", Also: []string{crashA}}},
		"a change and a crash":      {[]podworkers.Update{config, lost(crashA)}, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: "00-c", Also: []string{crashA}}},
		"a probe, then a crash": {
			[]podworkers.Update{{Cause: podworkers.Cause{Kind: podworkers.CauseProbe, Traceparent: crashA}}, lost(crashB)},
			podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: crashB, Also: []string{crashA}},
		},
		"a probe and its echo": {
			[]podworkers.Update{{Cause: podworkers.Cause{Kind: podworkers.CauseProbe, Traceparent: crashA}}, seen},
			podworkers.Cause{Kind: podworkers.CauseProbe, Traceparent: crashA},
		},
		"an echo does not count": {[]podworkers.Update{lost(crashA), seen}, podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: crashA}},
		"more crashes than anyone needs": {
			[]podworkers.Update{lost("1"), lost("2"), lost("3"), lost("4"), lost("5"), lost("6"), lost("7"), lost("8"), lost("9"), lost("10")},
			podworkers.Cause{Kind: podworkers.CauseLost, Traceparent: "10", Also: []string{"2", "3", "4", "5", "6", "7", "8", "9"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			folded := tc.updates[0]
			for _, u := range tc.updates[1:] {
				folded = podworkers.Fold(folded, u)
			}
			if len(folded.Cause.Also) == 0 {
				folded.Cause.Also = nil
			}
			if diff := cmp.Diff(tc.want, folded.Cause); diff != "" {
				t.Errorf("the folded cause (-want +got):\n%s", diff)
			}
		})
	}
}

// waitsOf returns the reasons of the waits that are children of a span.
func (r tracedRig) waitsOf(parent string) (waits []string) {
	for _, s := range r.spans.Ended() {
		if s.Name() == telemetry.SpanWait && parentOf(s) == parent {
			attributes := attribute.NewSet(s.Attributes()...)
			reason, _ := attributes.Value(telemetry.AttrWait)
			waits = append(waits, reason.AsString())
		}
	}
	return waits
}

func TestAWaitIsASpanThatSaysForWhat(t *testing.T) {
	for name, tc := range map[string]struct {
		script fakenode.Script
		want   string
	}{
		"a back-off":               {fakenode.Script{RetryAfter: time.Second, Reasons: map[string]podstatus.Reason{"main": {Reason: "CrashLoopBackOff"}}}, "main: CrashLoopBackOff"},
		"the runtime":              {fakenode.Script{Sync: func(context.Context, *v1.Pod) error { return status.Error(codes.Unavailable, "gone") }}, "pleg or the runtime, which is away"},
		"nothing, but a retry":     {fakenode.Script{Sync: func(context.Context, *v1.Pod) error { return status.Error(codes.Internal, "no") }}, "the next try, because INTERNAL"},
		"an error of this process": {fakenode.Script{Sync: func(context.Context, *v1.Pod) error { return errors.Join(errors.New("no")) }}, "the next try"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startTraced(t)
				r.node.SetScript(tc.script)
				pod := fakenode.Pod("u1", "web", v1.RestartPolicyAlways)
				r.store.SetPod(pod, "file", crashA)
				r.pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: crashA}, nil)
				eventually.That(t, "a wait in the trace", func() bool { return len(r.waitsOf(crashA)) > 0 })
				if got := r.waitsOf(crashA)[0]; got != tc.want {
					t.Errorf("it waits for %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestAPodThatWaitsForItsNameSaysSoInItsTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startTraced(t)
		r.want(fakenode.Pod("u1", "web", v1.RestartPolicyAlways))
		eventually.That(t, "web runs", r.running("web"))
		r.node.SetScript(fakenode.Script{Kill: func(context.Context, *v1.Pod, int64) error {
			time.Sleep(time.Second) // in the bubble's time: the container needs a second to stop
			return nil
		}})
		r.remove("u1", podworkers.End{Removed: true})
		next := fakenode.Pod("u2", "web", v1.RestartPolicyAlways)
		r.store.SetPod(next, "file", crashB)
		r.pool.Want(next, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: crashB}, nil)
		eventually.That(t, "a wait in the trace of the next", func() bool { return len(r.waitsOf(crashB)) > 0 })
		if got, want := r.waitsOf(crashB)[0], "the end of the pod u1 of its name"; got != want {
			t.Errorf("it waits for %q, want %q", got, want)
		}
	})
}
