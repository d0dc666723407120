package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// podCount is how many manifests there are at most.
	podCount = 12
	// defaultDuration is how long everything changes and is killed.
	defaultDuration = 40 * time.Second
	// patience is how long the node may take to come to rest afterwards.
	patience = 60 * time.Second
	// callTimeout bounds one question to the node or its runtime.
	callTimeout = 5 * time.Second
	// changePause and killPause are the longest pauses between two changes, and between two kills.
	changePause = 400 * time.Millisecond
	killPause   = 4 * time.Second
)

// TestNodeSettlesAfterChaos changes and kills at random, then checks that the node has exactly what is wanted.
func TestNodeSettlesAfterChaos(t *testing.T) {
	seed, duration := settings(t)
	t.Logf("seed: QUARTET_CHAOS_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := startNode(t)
	r := dialRuntime(t, n.Layout.RuntimeEndpoint())
	m := &manifests{dir: n.Layout.Manifests(), random: random}

	ctx, cancel := context.WithCancel(t.Context())
	instances := r.watchInstances(ctx)
	unleash(t, n, m, duration)
	wanted := m.settle(t, podCount)
	begun := time.Now()
	problems := n.settles(ctx, r, wanted)
	t.Logf("the node took %v to come to rest", time.Since(begun).Round(time.Millisecond))
	cancel()
	looks, twice := instances()
	t.Logf("the runtime was looked at %d times", looks)
	if looks == 0 {
		t.Error("the runtime was never looked at")
	}
	for _, problem := range problems {
		t.Error(problem)
	}
	for _, problem := range twice {
		t.Error("two instances ran at once of " + problem)
	}
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

// unleash changes and kills until the time is over, and tells what it does with the time, to be found again in the logs.
func unleash(t *testing.T, n *testNode, m *manifests, duration time.Duration) {
	t.Helper()
	begun := time.Now()
	pause := func(longest time.Duration) time.Time {
		return time.Now().Add(time.Duration(m.random.Int64N(int64(longest))))
	}
	nextChange, nextKill := time.Now(), pause(killPause)
	for time.Since(begun) < duration {
		next := nextChange
		if nextKill.Before(next) {
			next = nextKill
		}
		<-time.After(time.Until(next))
		var did string
		if next.Equal(nextKill) {
			did, nextKill = kill(t, n, m.random), pause(killPause)
		} else {
			did, nextChange = m.change(t, podCount), pause(changePause)
		}
		t.Logf("%s %s", time.Now().Format(time.StampMilli), did)
	}
}

// kill ends some processes of the node, and says which.
func kill(t *testing.T, n *testNode, random *rand.Rand) string {
	t.Helper()
	names := []string{"containerd"}
	for _, s := range layout.Services() {
		names = append(names, string(s))
	}
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	// One most of the time, sometimes several, up to all.
	count := 1
	for count < len(names) && random.IntN(3) == 0 {
		count++
	}
	for _, name := range names[:count] {
		n.kill(t, name)
	}
	return fmt.Sprintf("kill %s", strings.Join(names[:count], ", "))
}

// settles waits until the node is as it should be, and stays so for a moment. It returns what is wrong when it does not.
func (n *testNode) settles(ctx context.Context, r runtime, wanted map[string]kind) []string {
	const steady = 20
	end := time.Now().Add(patience)
	good := 0
	for {
		problems := n.check(ctx, r, wanted)
		if len(problems) > 0 {
			good = 0
		} else if good++; good == steady {
			return nil
		}
		if len(problems) > 0 && time.Now().After(end) {
			return problems
		}
		<-time.After(100 * time.Millisecond)
	}
}
