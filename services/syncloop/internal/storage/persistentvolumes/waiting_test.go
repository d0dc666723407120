package persistentvolumes_test

import (
	"context"
	"log/slog"
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
	answers chan struct{}
}

func (d slowDisk) FormatAndMount(device, target, fstype string, options []string) error {
	<-d.answers
	return d.Formatter.FormatAndMount(device, target, fstype, options)
}

// TestPodsThatWaitForADiskSaySo has two pods with a volume of a disk that does not answer: one waits for the disk, the
// other one for the first.
func TestPodsThatWaitForADiskSaySo(t *testing.T) {
	r := newDeviceRig(t)
	answers := make(chan struct{})
	r.kind.Formatter = slowDisk{r.kind.Formatter, answers}
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
	says("u2", "other operation on "+r.path)
	close(answers)
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
