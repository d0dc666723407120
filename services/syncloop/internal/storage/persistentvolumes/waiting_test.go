package persistentvolumes_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// slowDisk is a Formatter that waits for its disk.
type slowDisk struct {
	persistentvolumes.Formatter
	// asked receives each call, and answers is closed when the disk answers.
	asked, answers chan struct{}
}

func (d slowDisk) FormatAndMount(device, target, fstype string, options []string) error {
	d.asked <- struct{}{}
	<-d.answers
	return d.Formatter.FormatAndMount(device, target, fstype, options)
}

// TestPodsThatWaitForADiskSaySo has two pods with a volume of a disk that does not answer: one waits for the disk, the
// other one for the first.
func TestPodsThatWaitForADiskSaySo(t *testing.T) {
	r := newDeviceRig(t)
	disk := slowDisk{r.kind.Formatter, make(chan struct{}, 2), make(chan struct{})}
	answer := sync.OnceFunc(func() { close(disk.answers) })
	r.kind.Formatter = disk
	now := clocktesting.NewFakeClock(time.Now())
	manager, err := volumes.New(volumes.Config{
		PodsDir: r.pods, Clock: now, Logger: slog.New(slog.DiscardHandler),
		Plugins: persistentvolumes.Plugins(persistentvolumes.Config{
			Claims: claims{"data": r.request("u1").PV}, Kinds: []persistentvolumes.Kind{r.kind},
			Node: func(context.Context) (*v1.Node, error) { return &v1.Node{}, nil },
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = manager.Run(ctx)
	}()
	defer func() {
		answer()
		cancel()
		<-ended
	}()
	says := func(uid types.UID, want string) {
		t.Helper()
		pod := r.request(uid).Pod
		pod.Spec.Volumes = []v1.Volume{{Name: "files", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		pod.Spec.Containers = []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "files", MountPath: "/files"}}}}
		manager.Want(t.Context(), pod)
		eventually.That(t, string(uid)+" waits for the "+want, func() bool {
			now.Step(volumes.SlowAfter)
			return manager.Describe(uid)[0].GetWaitsFor() == want
		})
	}
	says("u1", "disk of "+r.path)
	// Before that it waits for the disk to say what it is, without the lock that the other one waits for.
	eventually.That(t, "u1 mounts", func() bool { return len(disk.asked) > 0 })
	says("u2", "other operation on "+r.path)
	answer()
	for _, uid := range []types.UID{"u1", "u2"} {
		eventually.That(t, string(uid)+" is ready", func() bool {
			now.Step(time.Second)
			return manager.Ready(uid)
		})
	}
	for _, uid := range []types.UID{"u1", "u2"} {
		eventually.That(t, "it is released", func() bool { return manager.Release(t.Context(), uid) == nil })
	}
	if at := mountsBelow(t, r.pods); len(at) > 0 {
		t.Errorf("mounted: %v, want none", at)
	}
}
