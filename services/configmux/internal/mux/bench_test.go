package mux_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// usual returns a pod of a typical size.
func usual(i int, image string) source.Pod {
	name := fmt.Sprintf("pod-%05d", i)
	container := func(name string) v1.Container {
		return v1.Container{
			Name:    name,
			Image:   image,
			Command: []string{"/bin/server", "--port=8080"},
			Env:     []v1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "C", Value: "3"}},
			Resources: v1.ResourceRequirements{
				Limits: v1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
			},
			VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}},
			Ports:        []v1.ContainerPort{{ContainerPort: 8080, Protocol: v1.ProtocolTCP}},
			ReadinessProbe: &v1.Probe{
				PeriodSeconds: 10,
				ProbeHandler:  v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"true"}}},
			},
		}
	}
	return source.Pod{Path: "/manifests/" + name + ".yaml", Pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "bench", "tier": "web"},
			Annotations: map[string]string{"kubernetes.io/config.hash": name, "note": "of a benchmark"},
		},
		Spec: v1.PodSpec{
			NodeName: "node", Containers: []v1.Container{container("main"), container("side")},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}},
		},
		Status: v1.PodStatus{Phase: v1.PodPending},
	}}
}

// benchMux returns a mux as in a process without tracing and debug logs.
func benchMux(b *testing.B) *mux.Mux {
	b.Helper()
	m := mux.New(mux.Config{
		Sources: []source.Source{named("file")},
		Health:  rpc.NewHealth(),
		Clock:   clock.RealClock{},
		Tracer: noop.NewTracerProvider().
			Tracer(""),
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: mux.NewMetrics(prometheus.NewRegistry()),
	})
	b.Cleanup(m.Close)
	return m
}

// BenchmarkMerge is the cost of a set from the source to the stream, without decoding: with pods that the source has
// kept from the last set (kept), and with newly decoded, equal pods (decoded).
func BenchmarkMerge(b *testing.B) {
	for _, size := range []int{10, 110, 500, 5000} {
		for _, changed := range []int{0, 1, size} {
			b.Run(
				fmt.Sprintf("kept/pods=%d/changed=%d", size, changed),
				func(b *testing.B) { benchMerge(b, size, changed, false) },
			)
		}
		b.Run(fmt.Sprintf("decoded/pods=%d/changed=1", size), func(b *testing.B) { benchMerge(b, size, 1, true) })
	}
}

func benchMerge(b *testing.B, size, changed int, decoded bool) {
	b.Helper()
	m := benchMux(b)
	var sets [2][]source.Pod
	for i := range size {
		first := usual(i, "image:1")
		second := first
		switch {
		case i < changed:
			second = usual(i, "image:2")
		case decoded:
			second = usual(i, "image:1")
		}
		sets[0], sets[1] = append(sets[0], first), append(sets[1], second)
	}
	read := time.Now()
	m.Set("file", source.Reading{Pods: sets[0], ReadAt: read})
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		m.Set("file", source.Reading{Pods: sets[n%2], ReadAt: read})
	}
}

// An unchanged pod of a source is not inspected, copied or encoded: the cost of a set beyond its changes is a few
// allocations, for any number of pods.
func TestUnchangedPodsAreNotCopied(t *testing.T) {
	cost := func(size int) float64 {
		m := newRig(t)
		var sets [2][]source.Pod
		for i := range size {
			pod := usual(i, "image:1")
			sets[0], sets[1] = append(sets[0], pod), append(sets[1], pod)
		}
		sets[1][0] = usual(0, "image:2")
		m.Set("file", source.Reading{Pods: sets[0]})
		n := 0
		return testing.AllocsPerRun(10, func() {
			n++
			m.Set("file", source.Reading{Pods: sets[n%2]})
		})
	}
	if few, many := cost(10), cost(1000); many > few+50 {
		t.Errorf("a set with one change takes %v allocations with 10 pods and %v with 1,000", few, many)
	}
}
