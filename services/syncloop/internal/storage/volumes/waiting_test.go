package volumes_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/mount-utils"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// slowMounts is a mount table that is read, and sub-paths that are unmounted, when the channel is closed; at once if it
// is nil.
type slowMounts struct {
	volumes.Mounter
	subpath.Machine
	read, unmounted chan struct{}
}

func (s slowMounts) List() ([]mount.MountPoint, error) {
	if s.read != nil {
		<-s.read
	}
	return s.Mounter.List()
}

func (s slowMounts) Detach(target string) error {
	if s.unmounted != nil {
		<-s.unmounted
	}
	return s.Machine.Detach(target)
}

// TestARemovalSaysWhatItWaitsFor has an empty directory whose removal hangs, and one with a mounted sub-path that is
// not unmounted.
func TestARemovalSaysWhatItWaitsFor(t *testing.T) {
	needsMounts(t)
	for want, slowly := range map[string]func(gate chan struct{}) slowMounts{
		"removal of its files": func(gate chan struct{}) slowMounts { return slowMounts{read: gate} },
		"unmount of its parts": func(gate chan struct{}) slowMounts { return slowMounts{unmounted: gate} },
	} {
		t.Run(want, func(t *testing.T) {
			gate := make(chan struct{})
			slow := slowly(gate)
			slow.Mounter = volumes.Machine{}
			goOn := sync.OnceFunc(func() { close(gate) })
			now := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
			manager, err := volumes.New(volumes.Config{
				PodsDir: t.TempDir(), Clock: now, Logger: slog.New(slog.DiscardHandler), SubPaths: slow,
				Plugins: []volumes.Plugin{&volumes.EmptyDir{Mounter: slow}},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = manager.Run(ctx) })
			defer running.Wait()
			defer cancel()
			defer goOn()

			pod := emptyDir(v1.EmptyDirVolumeSource{})
			manager.Want(t.Context(), pod)
			if err := manager.Wait(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			if _, err := manager.SubPath(t.Context(), pod, &pod.Spec.Volumes[0], &pod.Spec.Containers[0], 0, "a"); err != nil {
				t.Fatal(err)
			}
			released := make(chan error, 1)
			go func(uid types.UID) { released <- manager.Release(t.Context(), uid) }(pod.UID)
			eventually.That(t, "it waits for the "+want, func() bool {
				now.Step(volumes.SlowAfter)
				all := manager.Describe(pod.UID)
				return len(all) == 1 && all[0].GetWaitsFor() == want
			})
			goOn()
			if err := <-released; err != nil {
				t.Error(err)
			}
		})
	}
}
