package volumeprojected_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// manyPods is the number of pods in the benchmark, each with one volume.
const manyPods = 100

// BenchmarkHundredPods sets up one projected volume in each of a hundred pods concurrently and removes them all, with
// the volume manager and real mounts. The volume has a ConfigMap and a Secret of ten keys each and the labels of the
// pod.
func BenchmarkHundredPods(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("only root mounts")
	}
	manager, err := volumes.New(volumes.Config{
		PodsDir: b.TempDir(), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Plugins: volumeprojected.Plugins(volumeprojected.Config{
			Mounter: volumes.Machine{}, Objects: tenKeys{}, Clock: clock.RealClock{},
			Node: func(context.Context) (*v1.Node, error) { return &v1.Node{}, nil },
		}),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	pods := make([]*v1.Pod, manyPods)
	for i := range pods {
		pods[i] = projectedPod(i)
	}
	var mount, unmount, mountCPU, unmountCPU time.Duration
	rounds := 0
	for b.Loop() {
		took, used := all(b, pods, func(pod *v1.Pod) error {
			manager.Want(ctx, pod)
			return manager.Wait(ctx, pod)
		})
		mount, mountCPU = mount+took, mountCPU+used
		took, used = all(b, pods, func(pod *v1.Pod) error { return manager.Release(ctx, pod.UID) })
		unmount, unmountCPU = unmount+took, unmountCPU+used
		rounds++
	}
	each := func(d time.Duration) float64 { return d.Seconds() * 1000 / float64(rounds) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(each(mount), "mount-ms")
	b.ReportMetric(each(mountCPU), "mount-cpu-ms")
	b.ReportMetric(each(unmount), "unmount-ms")
	b.ReportMetric(each(unmountCPU), "unmount-cpu-ms")
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		b.Error(err)
	}
}

// all runs do for all pods concurrently and returns the time and the CPU time, including the kernel's.
func all(b *testing.B, pods []*v1.Pod, do func(*v1.Pod) error) (took, used time.Duration) {
	b.Helper()
	var group errgroup.Group
	before, begun := processorTime(b), time.Now()
	for _, pod := range pods {
		group.Go(func() error { return do(pod) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun), processorTime(b) - before
}

// processorTime returns the CPU time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// projectedPod returns a pod with a projected volume that its container mounts.
func projectedPod(i int) *v1.Pod {
	volume := v1.Volume{Name: "all", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}},
		{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "login"}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
	}}}}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)), Labels: map[string]string{"app": "web"}},
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{volume}, Containers: []v1.Container{{Name: "app", VolumeMounts: []v1.VolumeMount{{Name: "all", MountPath: "/all"}}}},
		},
	}
}

// tenKeys returns any ConfigMap and Secret, with ten keys each.
type tenKeys struct{}

func (tenKeys) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	data := map[string]string{}
	for i := range 10 {
		data[fmt.Sprintf("setting-%d", i)] = "value"
	}
	return &v1.ConfigMap{Data: data}, nil
}

func (tenKeys) Secret(context.Context, string, string) (*v1.Secret, error) {
	data := map[string][]byte{}
	for i := range 10 {
		data[fmt.Sprintf("secret-%d", i)] = []byte(hidden)
	}
	return &v1.Secret{Data: data}, nil
}
