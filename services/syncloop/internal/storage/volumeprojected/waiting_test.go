package volumeprojected_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// slow has every object, and answers when the channel is closed.
type slow chan struct{}

func (s slow) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	<-s
	return &v1.ConfigMap{}, nil
}

func (s slow) Secret(context.Context, string, string) (*v1.Secret, error) {
	<-s
	return &v1.Secret{}, nil
}

func (s slow) Token(context.Context, *v1.Pod, string, int64) (string, error) {
	<-s
	return hidden, nil
}

// slowRoots and slowCertificates are slow, too.
type (
	slowRoots        struct{ slow }
	slowCertificates struct{ slow }
)

func (s slowRoots) Get(context.Context, *v1.Pod, *v1.ClusterTrustBundleProjection) ([]byte, error) {
	<-s.slow
	return []byte("roots"), nil
}

func (s slowCertificates) Get(
	context.Context, *v1.Pod, string, int, *v1.PodCertificateProjection,
) (key, chain []byte, err error) {
	<-s.slow
	return []byte(hidden), []byte("chain"), nil
}

// TestAVolumeSaysWhichSourceHasNotAnswered has a volume of each kind of source.
func TestAVolumeSaysWhichSourceHasNotAnswered(t *testing.T) {
	bundles, certificates := identity().Projected.Sources[0], identity().Projected.Sources[1]
	for want, source := range map[string]v1.VolumeSource{
		"configmap shop/settings":                       configMap("settings", false),
		"secret shop/key":                               secret("key"),
		"API server to issue a token":                   projected(tokenFor("")),
		"API server to answer about trust bundles":      projected(bundles),
		"certificate of the signer shop.example/signer": projected(certificates),
	} {
		t.Run(want, func(t *testing.T) {
			r := newRig(t)
			answers := make(slow)
			answer := sync.OnceFunc(func() { close(answers) })
			now := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
			r.plugins = volumeprojected.Plugins(volumeprojected.Config{
				Mounter: r.mounter, Memory: func(context.Context) int64 { return 0 }, Objects: answers, Tokens: answers,
				TrustBundles: slowRoots{answers}, Certificates: slowCertificates{answers}, Clock: now,
			})
			manager, err := volumes.New(volumes.Config{
				PodsDir: r.dir, Clock: now, Logger: slog.New(slog.DiscardHandler), Plugins: r.plugins,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { _ = manager.Run(ctx) })
			defer running.Wait()
			defer cancel()
			defer answer()

			pod := r.volume(source).Pod
			manager.Want(t.Context(), pod)
			eventually.That(t, "it waits for the "+want, func() bool {
				now.Step(volumes.SlowAfter)
				return manager.Describe(pod.UID)[0].GetWaitsFor() == want
			})
			answer()
			eventually.That(t, "it is ready and waits for nothing", func() bool {
				return manager.Ready(pod.UID) && manager.Describe(pod.UID)[0].GetWaitsFor() == ""
			})
			if err := manager.Release(t.Context(), pod.UID); err != nil {
				t.Error(err)
			}
		})
	}
}
