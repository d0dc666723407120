package chaos

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// podCount is the largest number of manifests.
	podCount = 12
	// defaultDuration is the duration of the changes and kills.
	defaultDuration = 3 * time.Minute
	// patience is the time limit until the node has settled afterwards.
	patience = 3 * time.Minute
	// callTimeout bounds one request to the node or its runtime.
	callTimeout = 20 * time.Second
	// changePause, killPause and harmPause are the longest pauses between two changes, two kills of the node's processes,
	// and two harmed containers; in a calm stretch they are longer by a factor.
	changePause = 400 * time.Millisecond
	killPause   = 4 * time.Second
	harmPause   = 2 * time.Second
	calm        = 4
	stretch     = 20 * time.Second
)

// TestNodeSettlesAfterChaos changes, kills and harms at random, then checks that the node has exactly the desired
// state, that every start of a container had a cause that the log names, and that a recording of the node that is
// replayed gives the same decisions.
func TestNodeSettlesAfterChaos(t *testing.T) {
	seed, duration := settings(t)
	t.Logf("seed: QUARTET_CHAOS_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := startNode(t)
	h := newHostility(t, n, random)
	r := dialRuntime(t, n.Layout.RuntimeEndpoint())
	d := newDeeds()
	m := &manifests{dir: n.Layout.Manifests(), random: random, deeds: d, last: map[int]kind{}}

	startDevicePlugin(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shown := r.watch(ctx)
	unchanged := m.begin(t)
	if problems := n.settles(ctx, r, unchanged); len(problems) > 0 {
		t.Fatalf("before anything is done to the node: %s", strings.Join(problems, "\n"))
	}
	recorded := record(t, n)
	unleash(t, n, r, m, h, duration)
	t.Logf("%s %s", time.Now().Format(time.StampMilli), killAll(t, n, d))
	wanted := m.settle(t, podCount)
	maps.Copy(wanted, unchanged)
	begun := time.Now()
	problems := n.settles(ctx, r, wanted)
	t.Logf("the node took %v to come to rest", time.Since(begun).Round(time.Millisecond))
	cancel()
	shown.wait()
	recorded.end(t)
	problems = append(problems, recorded.differences(t)...)
	t.Logf("the runtime was looked at %d times", shown.looks)
	if shown.looks == 0 {
		t.Error("the runtime was never looked at")
	}
	for twice := range shown.twice {
		problems = append(problems, "two instances ran at once of "+twice)
	}
	problems = append(problems, n.keepsItsDevice()...)
	problems = append(problems, restarts(t, n, shown, d)...)
	for _, problem := range problems {
		t.Error(problem)
	}
}

// restarts returns the errors in the causes of the starts.
func restarts(t *testing.T, n *testNode, shown *history, d *deeds) []string {
	t.Helper()
	starts, err := readStarts(n.Layout.Logs())
	if err != nil {
		t.Fatal(err)
	}
	log, err := readRuntimeLog(filepath.Join(n.Layout.Logs(), "containerd.log"))
	if err != nil {
		t.Fatal(err)
	}
	seen := len(shown.instances)
	shown.complete(log, starts)
	q := shown.causes(starts, d)
	t.Logf("%d containers were made, %d of them between two looks; the log names %d starts, %d of them restarts; of %d it is unknown what was before",
		len(shown.instances), len(shown.instances)-seen, len(starts), q.restarts, q.unknown)
	for _, cause := range slices.Sorted(maps.Keys(q.causes)) {
		t.Logf("%6d  %s", q.causes[cause], cause)
	}
	return append(q.problems, shown.overlaps()...)
}

func settings(t *testing.T) (seed uint64, duration time.Duration) {
	t.Helper()
	seed, duration = rand.Uint64(), defaultDuration
	var err error
	if s := os.Getenv("QUARTET_CHAOS_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("QUARTET_CHAOS_SEED: %v", err)
		}
	}
	if s := os.Getenv("QUARTET_CHAOS_DURATION"); s != "" {
		if duration, err = time.ParseDuration(s); err != nil {
			t.Fatalf("QUARTET_CHAOS_DURATION: %v", err)
		}
	}
	return seed, duration
}

// unleash changes, kills, harms and is hostile until the time is over, and logs each action with its time, so that it
// can be found in the other logs. Busy and calm stretches alternate: in a busy one many starts are begun and few
// complete, in a calm one containers live long enough to be harmed.
func unleash(t *testing.T, n *testNode, r runtime, m *manifests, h *hostility, duration time.Duration) {
	t.Helper()
	begun := time.Now()
	pause := func(longest time.Duration) time.Time {
		if int(time.Since(begun)/stretch)%2 == 1 {
			longest *= calm
		}
		return time.Now().Add(time.Duration(m.random.Int64N(int64(longest))))
	}
	nextChange, nextKill, nextHarm, nextFault := time.Now(), pause(killPause), pause(harmPause), pause(faultPause)
	for time.Since(begun) < duration {
		next := slices.MinFunc([]time.Time{nextChange, nextKill, nextHarm, nextFault}, time.Time.Compare)
		if over, ok := h.next(); ok && over.Before(next) {
			<-time.After(time.Until(over))
			h.end(over)
			continue
		}
		<-time.After(time.Until(next))
		var did string
		switch next {
		case nextFault:
			did, nextFault = h.act(t), pause(faultPause)
		case nextKill:
			did, nextKill = killProcesses(t, n, m.deeds, m.random), pause(killPause)
		case nextHarm:
			did, nextHarm = r.harm(t.Context(), m.deeds, m.random), pause(harmPause)
		default:
			did, nextChange = m.change(t, podCount), pause(changePause)
		}
		t.Logf("%s %s", time.Now().Format(time.StampMilli), did)
	}
	h.end(time.Now().Add(time.Hour))
}

// settles waits until the node has the desired state and keeps it for a moment. It returns the errors when it does not.
func (n *testNode) settles(ctx context.Context, r runtime, wanted map[string]kind) []string {
	const minimum = 20
	end := time.Now().Add(patience)
	good := 0
	for {
		problems := n.check(ctx, r, wanted)
		if len(problems) > 0 {
			good = 0
		} else if good++; good == minimum {
			return nil
		}
		if len(problems) > 0 && time.Now().After(end) {
			return problems
		}
		<-time.After(100 * time.Millisecond)
	}
}
