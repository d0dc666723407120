package pleg

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// recording records a pleg as `quartet record` does.
type recording struct {
	t    *testing.T
	mask *noderecording.Mask
	end  func()

	mu      sync.Mutex
	entries []noderecording.Entry
}

// record begins to record the rig's pleg.
func (r *rig) record() *recording {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := rpc.Dial(r.cfg.Listen)
	if err != nil {
		r.t.Fatal(err)
	}
	rec := &recording{t: r.t, mask: noderecording.NewMask()}
	var running sync.WaitGroup
	rec.end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := conn.Close(); err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(rec.end)
	running.Go(func() {
		for ctx.Err() == nil {
			rec.calls(ctx, conn)
		}
	})
	rec.has("the calls", noderecording.PLEGCalls, noderecording.Synced)
	running.Go(func() {
		_ = stream.Follow(ctx, stream.FollowConfig[*lifecyclev1.Event]{
			Source: r.source(), Name: "recording", Logger: silent().Logger,
			Handle: func(c stream.Change[*lifecyclev1.Event]) {
				switch {
				case c.Op != stream.OpRemove:
					rec.write(noderecording.Events, noderecording.Put, c.Key, c.New)
				case c.FromSnapshot:
					rec.write(noderecording.Events, noderecording.Remove, c.Key, nil)
				default:
					rec.write(noderecording.Events, noderecording.Remove, c.Key, c.New)
				}
			},
			Synced: func() { rec.write(noderecording.Events, noderecording.Synced, "", nil) },
			Connected: func(up bool, _ error) {
				if !up {
					rec.write(noderecording.Events, noderecording.Down, "", nil)
				}
			},
		})
	})
	rec.has("the state", noderecording.Events, noderecording.Synced)
	return rec
}

// calls records calls until the stream ends.
func (rec *recording) calls(ctx context.Context, conn *grpc.ClientConn) {
	watch, err := debugv1.NewDebugServiceClient(conn).WatchRuntimeCalls(ctx, &debugv1.WatchRuntimeCallsRequest{},
		grpc.WaitForReady(true))
	if err != nil {
		return
	}
	for up := false; ; up = true {
		m, err := watch.Recv()
		switch {
		case err != nil && up:
			rec.write(noderecording.PLEGCalls, noderecording.Down, "", nil)
			return
		case err != nil:
			return
		case m.GetPlegRecord() != nil:
			rec.write(noderecording.PLEGRecord, noderecording.Put, m.GetPlegRecord().GetPod().GetUid(), m.GetPlegRecord())
		case m.GetCall() == nil:
			rec.write(noderecording.PLEGCalls, noderecording.Synced, "", nil)
		default:
			rec.write(noderecording.PLEGCalls, noderecording.Put, m.GetCall().GetMethod(), m.GetCall())
		}
	}
}

func (rec *recording) write(part noderecording.Part, op noderecording.Op, key string, value proto.Message) {
	e := noderecording.Entry{Time: time.Now(), Part: part, Op: op, Key: key}
	if value != nil {
		masked, err := rec.mask.Value(value)
		if err != nil {
			rec.t.Error(err)
			return
		}
		e.Value = masked
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.entries = append(rec.entries, e)
}

// count counts the entries of a kind.
func (rec *recording) count(part noderecording.Part, op noderecording.Op) (n int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for _, e := range rec.entries {
		if e.Part == part && e.Op == op {
			n++
		}
	}
	return n
}

// has waits for an entry of a kind.
func (rec *recording) has(what string, part noderecording.Part, op noderecording.Op) {
	rec.t.Helper()
	eventually.That(rec.t, what, func() bool { return rec.count(part, op) > 0 })
}

// replay ends the recording and replays it, after a change if there is one.
func (rec *recording) replay(change func([]noderecording.Entry) []noderecording.Entry) (differences int, out string) {
	rec.t.Helper()
	var printed bytes.Buffer
	differences, err := Replay{File: rec.file(change), Out: &printed}.Run(rec.t.Context())
	if err != nil {
		rec.t.Fatal(err)
	}
	return differences, printed.String()
}

// file ends the recording and returns its file, after a change if there is one.
func (rec *recording) file(change func([]noderecording.Entry) []noderecording.Entry) string {
	rec.t.Helper()
	rec.end()
	entries := rec.entries
	if change != nil {
		entries = change(entries)
	}
	file := filepath.Join(rec.t.TempDir(), "node.jsonl")
	var text bytes.Buffer
	w, err := noderecording.NewWriter(&text, time.Now(), 1<<30)
	if err != nil {
		rec.t.Fatal(err)
	}
	for _, e := range entries {
		if err := w.Write(e); err != nil {
			rec.t.Fatal(err)
		}
	}
	if err := w.End(time.Now()); err != nil {
		rec.t.Fatal(err)
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		rec.t.Fatal(err)
	}
	return file
}

// recordedNode records a pleg while pods start, crash, fail to be inspected and go, and while it is away.
func recordedNode(t *testing.T) *recording {
	t.Helper()
	fake := fakecri.New(t)
	before, _ := fake.RunPod(fakecri.Pod{UID: "before", Name: "before", Containers: []string{"app"}})
	r := newRig(t, fake.Endpoint())
	r.run()
	r.synced()
	rec := r.record()
	w := r.watch()

	sandbox, containers := fake.RunPod(fakecri.Pod{UID: "u1", Name: "web", Containers: []string{"app", "side"}})
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, containers["side"])
	fake.Exit(containers["app"], 7)
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, containers["app"])
	again := fake.AddContainer(sandbox, "app", 1)
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, again)

	undo := fake.Fail("ContainerStatus", again, -1, status.Error(codes.Internal, "broken"))
	fake.Exit(again, 9)
	eventually.That(t, "the pod cannot be inspected", func() bool { return r.status("u1", 0).GetInspectError() != "" })
	undo()
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, again)

	fake.DropSandbox(before)
	eventually.That(t, "the first pod is gone", func() bool { return len(r.status("before", 0).GetSandboxes()) == 0 })

	r.stop()
	fake.Exit(containers["side"], 1) // nobody sees it
	r.run()
	r.synced()
	eventually.That(t, "the calls are recorded again", func() bool {
		return rec.count(noderecording.PLEGCalls, noderecording.Synced) > 1 &&
			rec.count(noderecording.Events, noderecording.Synced) > 1
	})
	w = r.watch()
	_, containers = fake.RunPod(fakecri.Pod{UID: "u2", Name: "late", Containers: []string{"app"}})
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, containers["app"])
	fake.Exit(containers["app"], 3)
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, containers["app"])
	r.synced()
	eventually.That(t, "the death is recorded", func() bool {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		for _, e := range rec.entries {
			if event, ok := e.Value.(*lifecyclev1.Event); ok && event.GetExitCode() == 3 {
				return true
			}
		}
		return false
	})
	return rec
}

func TestARecordedPLEGPublishesTheSameAgain(t *testing.T) {
	differences, out := recordedNode(t).replay(nil)
	if differences > 0 || !strings.Contains(out, "Compared ") || strings.Contains(out, " 0 events") {
		t.Errorf("%d differences, want none, and events that are compared:\n%s", differences, out)
	}
}

// TestAnotherPLEGDiffersFromTheRecording changes the events of a recording to those of a pleg that decides otherwise.
func TestAnotherPLEGDiffersFromTheRecording(t *testing.T) {
	rec := recordedNode(t)
	for name, change := range map[string]func([]noderecording.Entry) []noderecording.Entry{
		"exit code 7": func(entries []noderecording.Entry) []noderecording.Entry {
			return changed(entries, 7, func(event *lifecyclev1.Event) *lifecyclev1.Event {
				event.ExitCode = 8
				return event
			})
		},
		"no event": func(entries []noderecording.Entry) []noderecording.Entry {
			return changed(entries, 7, func(*lifecyclev1.Event) *lifecyclev1.Event { return nil })
		},
	} {
		differences, out := rec.replay(change)
		if differences == 0 || !strings.Contains(out, name) || !strings.Contains(out, "default/web") {
			t.Errorf("%d differences, want one with %q of default/web:\n%s", differences, name, out)
		}
	}
}

// changed returns entries with another event in the place of that with an exit code; nil for none.
func changed(
	entries []noderecording.Entry, code int32, change func(*lifecyclev1.Event) *lifecyclev1.Event,
) []noderecording.Entry {
	var out []noderecording.Entry
	for _, e := range entries {
		if event, ok := e.Value.(*lifecyclev1.Event); ok && event.GetExitCode() == code {
			other := change(proto.CloneOf(event))
			if other == nil {
				continue
			}
			e.Value = other
		}
		out = append(out, e)
	}
	return out
}

// TestEachStepOfPLEGIsShownBeforeItIsRepeated stops at the first inspection.
func TestEachStepOfPLEGIsShownBeforeItIsRepeated(t *testing.T) {
	rec := recordedNode(t)
	var shown []string
	stop := errors.New("stop")
	_, err := Replay{File: rec.file(nil), Out: io.Discard, Step: func(text string) error {
		shown = append(shown, text)
		if strings.Contains(text, "inspect  default/web") {
			return stop
		}
		return nil
	}}.Run(t.Context())
	isEvent := func(s string) bool { return strings.Contains(s, "event  ") }
	if !errors.Is(err, stop) || !slices.ContainsFunc(shown, isEvent) {
		t.Errorf("%q were shown, error %v, want an event, and an inspection of web last", shown, err)
	}
}

func TestARecordingWithoutCallsCannotBeReplayed(t *testing.T) {
	_, err := Replay{File: "../syncloop/testdata/recordings/start.jsonl"}.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "record again, as a user with the role admin") {
		t.Errorf("%v, want that there are no calls", err)
	}
}
