package versions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/livenode"
)

const (
	// seedVariable and stepsVariable are the environment variables that repeat an order, and make it longer.
	seedVariable, stepsVariable = "QUARTET_VERSIONS_SEED", "QUARTET_VERSIONS_STEPS"
	// steps is the number of replaced processes without stepsVariable.
	steps = 12
	// clients is the number of users who start, change and end pods meanwhile.
	clients = 3
	// turnLimit bounds one step of a user's pod. A step may wait for several processes that start.
	turnLimit = 2 * time.Minute
)

// TestVersionsInARandomOrder upgrades and downgrades one process after the other, in an order that is printed with its
// seed, while pods start, change and end all the time. No pod notices, and nothing that was asked for is lost.
func TestVersionsInARandomOrder(t *testing.T) {
	seed, count := number(t, seedVariable, uint64(time.Now().UnixNano())), number(t, stepsVariable, steps)
	t.Logf("%s=%d %s=%d repeats this order", seedVariable, seed, stepsVariable, count)
	random := rand.New(rand.NewPCG(seed, 0))
	n := startNode(t)
	before := n.startSteady(t)
	problems := n.watchSteady(t)
	stop := n.load(t)
	running := map[layout.Service]version{}
	for step := range count {
		service := layout.Services()[random.IntN(len(layout.Services()))]
		next := released
		if running[service] == released {
			next = current
		}
		t.Logf("step %d: %s of %s", step+1, service, next)
		n.replace(t, service, next)
		running[service] = next
	}
	if turns := stop(); turns == 0 {
		t.Error("no pod started, changed and ended meanwhile")
	} else {
		t.Logf("%d pods started, changed and ended meanwhile", turns)
	}
	for _, problem := range problems() {
		t.Error(problem)
	}
	for name, ids := range before {
		if after := containers(n.await(t, name, "is Ready", livenode.Ready)); after != ids {
			t.Errorf("the containers of %s went from %s to %s", name, ids, after)
		}
	}
}

// number returns the value of an environment variable.
func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// load has users who start, change and end a pod again and again. The returned function ends them, and returns how many
// pods have ended.
func (n *mixedNode) load(t *testing.T) (stop func() int) {
	t.Helper()
	asked := make(chan struct{})
	var users sync.WaitGroup
	turns := make([]int, clients)
	for user := range clients {
		users.Go(func() {
			for {
				select {
				case <-asked:
					return
				default:
				}
				if err := n.turn(t.Context(), fmt.Sprintf("load-%d-%d", user, turns[user])); err != nil {
					t.Error(err)
					return
				}
				turns[user]++
			}
		})
	}
	end := sync.OnceFunc(func() {
		close(asked)
		users.Wait()
	})
	t.Cleanup(end) // if the test ends early
	return func() int {
		end()
		total := 0
		for _, own := range turns {
			total += own
		}
		return total
	}
}

// turn starts a pod, changes it and ends it.
func (n *mixedNode) turn(ctx context.Context, name string) error {
	find := func(pods []v1.Pod) *v1.Pod {
		i := slices.IndexFunc(pods, func(p v1.Pod) bool { return strings.HasPrefix(p.Name, name+"-") })
		if i < 0 {
			return nil
		}
		return &pods[i]
	}
	for _, value := range []string{"one", "two"} {
		spec := "\n  containers:\n  - {name: main, image: IMAGE, args: [sleep], env: [{name: VALUE, value: " + value + "}]}\n"
		if err := n.Place(name+".yaml", manifest(name, spec)); err != nil {
			return err
		}
		if !n.within(ctx, func(pods []v1.Pod) bool {
			p := find(pods)
			return p != nil && livenode.Ready(p) && p.Spec.Containers[0].Env[0].Value == value
		}) {
			return fmt.Errorf("%s with the value %s is not Ready", name, value)
		}
	}
	if err := n.TakeAway(name + ".yaml"); err != nil {
		return err
	}
	if !n.within(ctx, func(pods []v1.Pod) bool { return find(pods) == nil }) {
		return fmt.Errorf("%s has not ended", name)
	}
	return nil
}

// within waits until the pods of the node meet a condition.
func (n *mixedNode) within(ctx context.Context, met func([]v1.Pod) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, turnLimit)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if pods, err := n.Pods(ctx); err == nil && met(pods) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}
