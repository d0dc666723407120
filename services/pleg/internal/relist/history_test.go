package relist_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/pleg/internal/journal"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
)

// process is one run of pleg.
type process struct {
	*relist.Relister
	events *stream.Edge[*lifecyclev1.Event]
	disk   *handle
	// end stops it and waits for its end.
	end func()
}

// callTimeout is the timeout of a call of the runtime.
const callTimeout = 20 * time.Second

func startProcess(w *world, disk *storage, tracer trace.Tracer) *process {
	p := &process{disk: &handle{disk: disk, killed: make(chan struct{})}}
	logger, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	book := journal.Open(
		journal.Config{
			File: p.disk, Observer: w.boot, Clock: clock.RealClock{}, Logger: logger, Metrics: journal.NewMetrics(registry),
		},
	)
	p.events = stream.NewEdge[*lifecyclev1.Event](stream.Config{LogSize: 32, Continues: book.Continues()})
	p.Relister = relist.New(relist.Config{
		Runtime: func(context.Context) (internalapi.RuntimeService, error) { return w, nil },
		Events:  p.events, Journal: book, Tracer: tracer, Timeout: callTimeout,
		BootTime: boottime.Now, Clock: clock.RealClock{}, Logger: logger, Metrics: relist.NewMetrics(registry),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- p.Run(ctx) }()
	go func() { done <- book.Run(ctx) }()
	p.end = func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				panic(err)
			}
		}
		p.events.Close()
	}
	return p
}

// history is a random sequence of events on a node: pods, failures, followers, and successive plegs.
type history struct {
	*world
	t         *rapid.T
	disk      *storage
	door      *door
	pleg      *process
	followers []*follower
	// late are delayed hints.
	late []func()
}

// TestHistories: however pods live and die, whatever fails, and however often pleg is stopped or killed, in the middle
// of a relist or of a write, every follower's events are
//
//   - Ordered: of a container the start, the death, the removal;
//   - Unique: none comes twice, over all subscriptions of a follower;
//   - Reliable: none is missing, but where a fresh snapshot says what has become of it; with the runtime's facts;
//
// and when everything has come to rest, the record, what the followers hold and what is kept for the next pleg are
// equal to the runtime, so that the next one has nothing to tell.
func TestHistories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Rapid would use the deadline of a testing.T, which does not apply here.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			h := &history{t: t, world: newWorld(), disk: &storage{}, door: &door{}}
			defer h.end()
			h.start()
			for range rapid.IntRange(1, 60).Draw(t, "steps") {
				h.step()
				synctest.Wait()
				h.judge()
			}
			h.rest()
			h.returns()
		})
	})
}

func (h *history) start() {
	h.pleg = startProcess(h.world, h.disk, noop.NewTracerProvider().Tracer(""))
	h.door.set(h.pleg)
}

// halt ends the process: a kill loses unwritten data.
func (h *history) halt(kill, torn bool) {
	if h.pleg == nil {
		return
	}
	if kill {
		h.pleg.disk.torn = torn
		close(h.pleg.disk.killed)
		h.door.set(nil)
	} else {
		h.disk.set(h.disk.full, false)
	}
	h.pleg.end()
	synctest.Wait()
	h.door.set(nil)
	h.pleg = nil
}

func (h *history) end() {
	h.heal()
	h.disk.set(false, false)
	h.halt(true, false)
	for _, f := range h.followers {
		f.stop()
	}
}

func (h *history) draw(what string, n int) int { return rapid.IntRange(0, n-1).Draw(h.t, what) }

func (h *history) uid() string { return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(h.t, "pod") }

// step makes one change.
func (h *history) step() {
	switch what := rapid.SampledFrom([]string{
		"sandbox", "container", "container", "advance", "advance", "advance", "advance", "unknown", "remove", "stop", "drop",
		"tick", "tick", "tick", "late hint", "evented", "fail lists", "hang lists", "fail a pod", "hang a pod", "heal",
		"follow", "leave", "pause", "go on", "cut",
		"kill", "kill", "stop pleg", "start pleg", "start pleg", "stall", "full", "disk is well",
	}).Draw(h.t, "step"); what {
	case "tick":
		time.Sleep(time.Duration(1+h.draw("ticks", 6)) * relist.Period)
	case "late hint":
		if len(h.late) > 0 {
			h.late[0]()
			h.late = h.late[1:]
		}
	case "evented":
		if h.pleg != nil {
			h.pleg.SetEvented(rapid.Bool().Draw(h.t, "evented"))
		}
	case "fail lists", "hang lists", "fail a pod", "hang a pod", "heal":
		h.failure(what)
	case "follow", "leave", "pause", "go on", "cut":
		h.audience(what)
	case "kill", "stop pleg", "start pleg", "stall", "full", "disk is well":
		h.machine(what)
	default:
		h.life(what)
	}
}

// life changes a pod, and sends the runtime's hint of it: at once, later, twice or never.
func (h *history) life(what string) {
	uid, id := h.uid(), ""
	h.mu.Lock()
	own := slices.DeleteFunc(
		slices.Clone(h.containers),
		func(c *runtimeapi.ContainerStatus) bool { return c.GetLabels()[podlabels.PodUID] != uid },
	)
	switch {
	case what == "sandbox":
		h.addSandbox(uid)
	case what == "container":
		h.addContainer(uid)
	case what == "stop":
		for _, s := range h.sandboxes {
			if s.GetMetadata().GetUid() == uid {
				s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
			}
		}
	case what == "drop":
		h.dropPod(uid)
	case len(own) > 0:
		c := own[h.draw("container", len(own))]
		id = c.GetId()
		switch {
		case what == "advance":
			h.advance(c)
		case what == "remove":
			h.dropContainer(c)
		case c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING:
			c.State = runtimeapi.ContainerState_CONTAINER_UNKNOWN
		}
	}
	h.mu.Unlock()
	at := time.Now()
	hint := func() {
		switch {
		case h.pleg == nil:
		case id != "" && at.Nanosecond()%2 == 0:
			h.pleg.HintAny(id, at)
		default:
			h.pleg.Hint(uid, at)
		}
	}
	switch h.draw("word", 4) {
	case 0:
		hint()
	case 1:
		hint()
		hint()
	case 2:
		h.late = append(h.late, hint)
	}
}

func (h *history) failure(what string) {
	if what == "heal" {
		h.heal()
		return
	}
	uid := h.uid()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case what == "fail lists":
		h.failing = 1 + h.draw("times", 5)
	case what == "hang lists" && h.hanging == nil:
		h.hanging = make(chan struct{})
	case what == "fail a pod":
		h.broken[uid] = true
	case what == "hang a pod" && h.hung[uid] == nil:
		h.hung[uid] = make(chan struct{})
	}
}

// audience changes the followers; "cut" breaks all connections.
func (h *history) audience(what string) {
	switch {
	case what == "follow" && len(h.followers) < 4:
		h.followers = append(h.followers, follow(h.world, h.door))
	case what == "cut":
		h.door.set(h.pleg)
	case len(h.followers) == 0:
	case what == "leave":
		i := h.draw("follower", len(h.followers))
		h.followers[i].stop()
		h.followers = slices.Delete(h.followers, i, i+1)
	default:
		h.followers[h.draw("follower", len(h.followers))].pause(what == "pause")
	}
}

func (h *history) machine(what string) {
	switch what {
	case "kill":
		h.halt(true, rapid.Bool().Draw(h.t, "torn"))
	case "stop pleg":
		h.halt(false, false)
	case "start pleg":
		if h.pleg == nil {
			h.start()
		}
	case "stall":
		h.disk.set(h.disk.full, true)
	case "full":
		h.disk.set(true, h.disk.stalled != nil)
	case "disk is well":
		h.disk.set(false, false)
	}
}

// judge fails the test when a follower has received something that breaks a rule.
func (h *history) judge() {
	for i, f := range h.followers {
		if wrong := f.broken(); len(wrong) > 0 {
			h.t.Fatalf("follower %d: %s, want none", i, strings.Join(wrong, "\n"))
		}
	}
}

// rest ends every failure, waits until everything has settled, and compares.
func (h *history) rest() {
	h.heal()
	h.disk.set(false, false)
	if h.pleg == nil {
		h.start()
	}
	h.followers = append(h.followers, follow(h.world, h.door))
	for _, f := range h.followers {
		f.pause(false)
	}
	h.pleg.SetEvented(false)
	time.Sleep(time.Minute)
	synctest.Wait()
	h.equal()
}

func (h *history) equal() {
	h.t.Helper()
	all, err := h.pleg.List()
	if err != nil {
		h.t.Fatal(err)
	}
	onRecord := map[string]*lifecyclev1.PodStatus{}
	for _, s := range all {
		onRecord[s.GetUid()] = s
	}
	if diff := diffWorld(h.world, onRecord, false); diff != "" {
		h.t.Fatalf("the record is not what the runtime has (-runtime +record):\n%s", diff)
	}
	kept := map[string]*lifecyclev1.PodStatus{}
	before, known := journal.Open(journal.Config{File: &handle{disk: h.disk, killed: make(chan struct{})},
		Logger: slog.New(slog.DiscardHandler)}).
		Before()
	for uid, pod := range before {
		kept[uid] = pod.Status
	}
	if diff := diffWorld(h.world, kept, false); diff != "" || !known {
		h.t.Fatalf("what is kept is not what the runtime has (-runtime +kept):\n%s", diff)
	}
	for _, f := range h.followers {
		f.complete()
	}
	h.judge()
}

// returns restarts pleg several times: a pleg that returns to an unchanged node sends nothing, and an exit while it was
// down is sent once to every follower.
func (h *history) returns() {
	restart := func(kill bool, meanwhile func()) {
		h.halt(kill, false)
		meanwhile()
		h.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
	}
	expect := func(what string, want ...string) {
		for i, f := range h.followers {
			if got := f.take(); !slices.Equal(got, append([]string{}, want...)) {
				h.t.Fatalf("Unique, Reliable: %s: follower %d is told %q, want %q", what, i, got, want)
			}
		}
	}
	for _, f := range h.followers {
		f.take()
	}
	restart(rapid.Bool().Draw(h.t, "kill"), func() {})
	expect("nothing happened")
	var running *runtimeapi.ContainerStatus
	for _, c := range h.containers {
		if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			running = c
		}
	}
	if running != nil {
		restart(rapid.Bool().Draw(h.t, "kill"), func() { h.advance(running) })
		expect("one died", fmt.Sprint(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, " ", running.GetId()))
	}
	restart(true, func() {})
	expect("nothing happened again")
	h.equal()
}
