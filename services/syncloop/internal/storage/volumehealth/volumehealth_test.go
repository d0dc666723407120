package volumehealth_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumehealth"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// rig has two drivers, "disks" and "slow", whose volumes begin with their names.
type rig struct {
	*volumehealth.Monitor
	mu      sync.Mutex
	pods    []*v1.Pod
	health  map[string]string
	changed []types.UID
	asked   []string
	// drivers are the registered ones, and storage has what they say of their storage.
	drivers []string
	storage map[string]string
	stored  int
	hangs   chan struct{}
}

func newPod(uid string, names ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: uid, UID: types.UID(uid)}}
	for _, name := range names {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name})
	}
	return pod
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = r.Run(ctx, volumehealth.Config{
			Pods: func() ([]*v1.Pod, error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.pods, nil
			},
			Driver: func(_ *v1.Pod, v *v1.Volume) string {
				driver, _, found := strings.Cut(v.Name, "-")
				if !found {
					return ""
				}
				return driver
			},
			Health: r.ask,
			Changed: func(pod types.UID) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.changed = append(r.changed, pod)
			},
			Drivers: func() []string {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.drivers
			},
			Storage: r.askStorage,
			StorageChanged: func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.stored++
			},
			Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		})
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

func (r *rig) ask(ctx context.Context, _ *v1.Pod, v *v1.Volume) ([]v1.VolumeHealthCondition, error) {
	r.mu.Lock()
	r.asked = append(r.asked, v.Name)
	says := r.health[v.Name]
	r.mu.Unlock()
	if strings.HasPrefix(v.Name, "slow") {
		select {
		case <-r.hangs:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch says {
	case "fails":
		return nil, errors.New("the driver fails")
	case "unknown":
		return nil, volumes.ErrNotExamined
	case "":
		return nil, nil
	}
	return []v1.VolumeHealthCondition{{Status: v1.VolumeHealthDegraded, Reason: says}}, nil
}

func (r *rig) askStorage(_ context.Context, driver string) ([]storagev1.StorageHealthCondition, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch says := r.storage[driver]; says {
	case "unknown":
		return nil, volumes.ErrNotExamined
	case "fails":
		return nil, errors.New("the driver fails")
	case "":
		return nil, nil
	default:
		return []storagev1.StorageHealthCondition{{Status: storagev1.StorageDegraded, Reason: says}}, nil
	}
}

func (r *rig) say(volume, health string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health[volume] = health
}

// since returns the pods whose health has changed, and the volumes that were asked about, since the last call.
func (r *rig) since() (changed []types.UID, asked []string) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, asked = r.changed, r.asked
	r.changed, r.asked = nil, nil
	slices.Sort(asked)
	return changed, asked
}

// reasons returns what is known of a pod: the reasons of its volumes' conditions.
func (r *rig) reasons(pod types.UID) map[string]string {
	all := map[string]string{}
	for name, conditions := range r.Of(pod) {
		all[name] = ""
		for _, c := range conditions {
			all[name] += c.Reason
		}
	}
	return all
}

func TestDriversAreAskedEachMinuteAndAFailureChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Monitor: volumehealth.New(), health: map[string]string{"disks-a": "DiskSlow", "disks-x": "unknown"}}
		r.pods = []*v1.Pod{newPod("u1", "disks-a", "disks-b", "config"), newPod("u2", "disks-x")}
		r.run(t)
		changed, asked := r.since()
		if !slices.Equal(asked, []string{"disks-a", "disks-b", "disks-x"}) || !slices.Equal(changed, []types.UID{"u1", "u1"}) {
			t.Errorf("asked %q, changed %q", asked, changed)
		}
		if got := r.reasons("u1"); len(got) != 2 || got["disks-a"] != "DiskSlow" || got["disks-b"] != "" {
			t.Errorf("known: %v", got)
		}
		if got := r.Of("u2"); len(got) != 0 {
			t.Errorf("a volume of a driver that says nothing: %v", got)
		}
		for _, step := range []struct {
			says, want string
			changes    int
		}{{"DiskSlow", "DiskSlow", 0}, {"fails", "DiskSlow", 0}, {"", "", 1}, {"Gone", "Gone", 1}} {
			r.say("disks-a", step.says)
			<-time.After(time.Minute)
			changed, asked := r.since()
			if len(asked) != 3 || len(changed) != step.changes || r.reasons("u1")["disks-a"] != step.want {
				t.Errorf("%q: asked %q, changed %q, known %v", step.says, asked, changed, r.reasons("u1"))
			}
		}
		r.mu.Lock()
		r.pods = nil
		r.mu.Unlock()
		<-time.After(time.Minute)
		synctest.Wait()
		if got := r.Of("u1"); got != nil {
			t.Errorf("a pod that is gone: %v", got)
		}
	})
}

func TestADriverThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Monitor: volumehealth.New(), health: map[string]string{"slow-b": "Late"}, hangs: make(chan struct{})}
		r.pods = []*v1.Pod{newPod("u1", "slow-a", "slow-b", "disks-a")}
		r.run(t)
		for range 3 {
			if _, asked := r.since(); !slices.Contains(asked, "disks-a") || slices.Contains(asked, "slow-b") {
				t.Errorf("asked about %q", asked)
			}
			<-time.After(time.Minute)
		}
		close(r.hangs)
		synctest.Wait()
		if got := r.reasons("u1"); got["slow-b"] != "Late" {
			t.Errorf("known: %v", got)
		}
	})
}

func TestTheStorageOfEachRegisteredDriverHasAHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{Monitor: volumehealth.New(), drivers: []string{"disks", "files", "none"}, storage: map[string]string{
			"disks": "Rebuild", "none": "unknown"}}
		registry := prometheus.NewRegistry()
		volumehealth.Expose(registry, r.Storage)
		r.run(t)
		for i, step := range []struct {
			says, want string
			drivers    []string
			known      int
			changes    int
		}{
			{"Rebuild", "Rebuild", []string{"disks", "files", "none"}, 2, 2},
			{"fails", "Rebuild", []string{"disks", "files", "none"}, 2, 2},
			{"", "", []string{"disks", "files", "none"}, 2, 3},
			{"Network", "Network", []string{"disks"}, 1, 4},
			{"Network", "", nil, 0, 4},
		} {
			if i > 0 {
				r.mu.Lock()
				r.storage["disks"], r.drivers = step.says, step.drivers
				r.mu.Unlock()
				<-time.After(time.Minute)
			}
			r.since()
			known, reason, exposed := r.Storage(), "", ""
			for _, c := range known["disks"] {
				reason = c.Reason
			}
			families, err := registry.Gather()
			for _, family := range families {
				for _, m := range family.GetMetric() {
					exposed += family.GetName() + m.GetLabel()[1].GetValue()
				}
			}
			if len(known) != step.known || reason != step.want || r.stored != step.changes || err != nil ||
				exposed != strings.Repeat("csi_node_storage_health_status"+step.want, min(len(step.want), 1)) {
				t.Errorf("step %d: known %v, %d changes, exposed %s, %v; want %+v", i, known, r.stored, exposed, err, step)
			}
		}
	})
}
