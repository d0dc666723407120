package volumes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/test/eventually"
)

// TestTheManagerHasJustWhatIsWantedAfterAnyHistory drives a manager with mounts in memory. In any order and without
// waiting for operations, pods are desired and released, volumes fail and recover, time passes and the process
// restarts. When nothing fails any more, exactly the volumes of the desired pods must be mounted, once each.
func TestTheManagerHasJustWhatIsWantedAfterAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		defer r.stop()
		uids, names := []types.UID{"u1", "u2", "u3"}, []string{"x", "y"}
		pods, wanted := map[types.UID]*v1.Pod{}, map[types.UID]bool{}
		for _, uid := range uids {
			pods[uid] = newPod(uid, names[:rapid.IntRange(1, len(names)).Draw(rt, "volumes")]...)
		}
		uid := rapid.SampledFrom(uids)
		name := rapid.SampledFrom(names)
		rt.Repeat(map[string]func(*rapid.T){
			"want": func(rt *rapid.T) {
				u := uid.Draw(rt, "pod")
				wanted[u] = true
				r.manager.Want(t.Context(), pods[u])
			},
			"release": func(rt *rapid.T) {
				u := uid.Draw(rt, "pod")
				wanted[u] = false
				r.releases(u, false)
			},
			"fail":    func(rt *rapid.T) { r.plugin.failing(name.Draw(rt, "volume"), errors.New("no such thing")) },
			"mend":    func(rt *rapid.T) { r.plugin.failing(name.Draw(rt, "volume"), nil) },
			"refresh": func(rt *rapid.T) { r.manager.Refresh(uid.Draw(rt, "pod")) },
			"time":    func(rt *rapid.T) { r.clock.Step(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(rt, "by"))) },
			"restart": func(*rapid.T) {
				r.stop()
				eventually.That(r.t, "what the old process did has ended with it", func() bool { return r.plugin.underWay() == 0 })
				r.start()
			},
		})
		for _, n := range names {
			r.plugin.failing(n, nil)
		}
		want := 0
		for _, u := range uids {
			if !wanted[u] {
				r.releases(u, true)
				continue
			}
			want += len(pods[u].Spec.Volumes)
			r.manager.Want(t.Context(), pods[u])
			eventually.That(r.t, fmt.Sprintf("pod %s has its volumes", u), func() bool {
				r.clock.Step(time.Second)
				return r.manager.Ready(u)
			})
			for _, v := range pods[u].Spec.Volumes {
				if path := r.path(u, "kubernetes.io~configmap", v.Name); !r.plugin.isMounted(path) {
					rt.Errorf("%s is not mounted", path)
				}
			}
		}
		if points, _ := r.mounter.List(); len(points) != want {
			rt.Errorf("mounted are %v, want %d", points, want)
		}
	})
}

// releases starts the removal of a pod's volumes. If done is true, it waits until they are removed while time passes.
func (r *rig) releases(uid types.UID, done bool) {
	r.t.Helper()
	if !done {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // Release does not wait
		_ = r.manager.Release(ctx, uid)
		return
	}
	released := make(chan error, 1)
	go func() { released <- r.release(uid) }()
	for deadline := time.Now().Add(testTimeout); ; {
		select {
		case err := <-released:
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				r.t.Fatalf("the volumes of %s are not removed: %v", uid, err)
			}
			go func() { released <- r.release(uid) }()
		case <-time.After(time.Millisecond):
			r.clock.Step(time.Second)
		}
	}
}
