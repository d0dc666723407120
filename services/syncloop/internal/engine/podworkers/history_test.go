package podworkers_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestNoHistoryBreaksARule runs random histories of updates, removals and evictions against a node with slow kills. At
// the end exactly the desired pods that were not evicted must run.
func TestNoHistoryBreaksARule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(fakenode.New())
		defer r.stop()
		r.node.SetScript(fakenode.Script{
			Kill: func(ctx context.Context, _ *v1.Pod, grace int64) error {
				select {
				case <-time.After(time.Duration(grace) * 100 * time.Microsecond):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			},
		})
		wanted, evicted := map[types.UID]*v1.Pod{}, map[types.UID]bool{}
		steps := rapid.SliceOfN(rapid.IntRange(0, 6*9-1), 1, 25).Draw(t, "steps")
		var waiters []chan struct{}
		for _, step := range steps {
			name, version := step%3, step/3%3
			uid := types.UID(fmt.Sprintf("pod-%d-%d", name, version))
			switch step / 9 {
			case 0, 1: // replaces the pod of that name by this one
				for other, pod := range wanted {
					if pod.Name == fmt.Sprintf("pod-%d", name) && other != uid {
						delete(wanted, other)
						delete(evicted, other)
						r.remove(other, podworkers.End{})
					}
				}
				wanted[uid] = fakenode.Pod(string(uid), fmt.Sprintf("pod-%d", name), v1.RestartPolicyAlways)
				r.want(wanted[uid])
			case 2, 3:
				if _, ok := wanted[uid]; ok {
					delete(wanted, uid)
					delete(evicted, uid)
					stopped := make(chan struct{})
					if r.remove(uid, podworkers.End{Grace: ptr.To(int64(step % 7)), Stopped: []chan<- struct{}{stopped}}) {
						waiters = append(waiters, stopped)
					}
				}
			case 4:
				r.pool.Poke(uid, podworkers.Cause{Kind: podworkers.CauseKind(step % 3)})
			case 5:
				if _, ok := wanted[uid]; ok {
					evicted[uid] = true
					stopped := make(chan struct{})
					end := podworkers.End{Grace: ptr.To(int64(step % 7)), Stopped: []chan<- struct{}{stopped}}
					if r.pool.End(uid, podworkers.Cause{}, end) {
						waiters = append(waiters, stopped)
					}
				}
			}
		}
		eventually.That(t, "every waiter is notified", func() bool {
			for _, w := range waiters {
				select {
				case <-w:
				default:
					return false
				}
			}
			return true
		})
		var names []string
		var uids []types.UID
		for uid, pod := range wanted {
			if uids = append(uids, uid); !evicted[uid] {
				names = append(names, pod.Name)
			}
		}
		slices.Sort(names)
		slices.Sort(uids)
		eventually.That(t, fmt.Sprintf("exactly %v run", names), func() bool {
			left := r.node.UIDs() // an evicted pod that has run keeps its ended containers
			return slices.Equal(r.node.Running(), names) && len(r.pool.List()) == len(uids) &&
				!slices.ContainsFunc(left, func(uid types.UID) bool { return wanted[uid] == nil })
		})
		if broken := r.node.Broken(); len(broken) > 0 {
			t.Fatalf("broken: %v, want none", broken)
		}
	})
}
