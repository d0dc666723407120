package nodevolumes

import (
	"context"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// provided is a kind of volumes that only asks for the volume of a claim.
type provided struct {
	*Volumes
	claim *v1.PersistentVolumeClaim
}

func (provided) Name() string                           { return "kubernetes.io~provided" }
func (provided) CanSupport(v *v1.Volume) bool           { return v.PersistentVolumeClaim != nil }
func (provided) Refreshes() bool                        { return false }
func (provided) TearDown(context.Context, string) error { return nil }
func (p provided) SetUp(ctx context.Context, _ volumes.Request) error {
	_, err := p.Provide(ctx, p.claim)
	return err
}

// TestAPodThatWaitsForAnotherStepOfItsVolumeSaysSo has a pod whose volume is worked on, as by Run that makes it.
func TestAPodThatWaitsForAnotherStepOfItsVolumeSaysSo(t *testing.T) {
	r := newRig(t)
	data := claim("u1", "1Gi")
	now := clocktesting.NewFakeClock(time.Now())
	manager, err := volumes.New(volumes.Config{
		PodsDir: t.TempDir(), Clock: now, Logger: slog.New(slog.DiscardHandler),
		Plugins: []volumes.Plugin{provided{r.Volumes, data}},
	})
	must(t, err)
	e, done := r.reserve(data)
	unlock, err := r.locks.Lock(t.Context(), e.name)
	must(t, err)
	done()
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
	pod := &v1.Pod{Spec: v1.PodSpec{
		Volumes: []v1.Volume{{Name: "files", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: data.Name},
		}}},
		Containers: []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "files", MountPath: "/files"}}}},
	}}
	pod.UID = "p1"
	manager.Want(t.Context(), pod)
	eventually.That(t, "it says what it waits for", func() bool {
		now.Step(volumes.SlowAfter)
		return manager.Describe("p1")[0].GetWaitsFor() == "CSI driver "+driverName+" to end another call for the volume"
	})
	unlock()
	eventually.That(t, "it has its volume", func() bool { return manager.Ready("p1") })
	must(t, manager.Release(t.Context(), "p1"))
}
