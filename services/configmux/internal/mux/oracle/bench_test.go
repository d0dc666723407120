package oracle

import (
	"fmt"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// usual returns a newly decoded pod of a typical size.
func usual(i int, image string) *v1.Pod {
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
	return pod(types.UID(fmt.Sprintf("%05d", i)), func(p *v1.Pod) {
		p.Labels = map[string]string{"app": "bench", "tier": "web"}
		p.Annotations = map[string]string{"note": "of a benchmark"}
		p.Spec = v1.PodSpec{
			NodeName: "node", Containers: []v1.Container{container("main"), container("side")},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}},
		}
		p.Status.Phase = v1.PodPending
	})
}

// twoSets returns two full sets that differ in one pod. If kept is true, the other pods are the same pointers in both.
func twoSets(size int, kept bool) [2][]*v1.Pod {
	var out [2][]*v1.Pod
	for i := range size {
		first, second := usual(i, "image:1"), usual(i, "image:1")
		switch {
		case i == 0:
			second = usual(i, "image:2")
		case kept:
			second = first
		}
		out[0], out[1] = append(out[0], first), append(out[1], second)
	}
	return out
}

// cost is the cost of one set.
type cost struct{ nanoseconds, bytes, allocations float64 }

// measure benchmarks what is done with a set, and reports how many times less than the peer it costs, if that was
// measured.
func measure(b *testing.B, peer *cost, do func(n int)) cost {
	b.Helper()
	b.ReportAllocs()
	var before, after runtime.MemStats
	n := 0
	runtime.ReadMemStats(&before)
	for b.Loop() {
		n++
		do(n)
	}
	runtime.ReadMemStats(&after)
	per := float64(n)
	c := cost{
		float64(b.Elapsed().Nanoseconds()) / per,
		float64(after.TotalAlloc-before.TotalAlloc) / per,
		float64(after.Mallocs-before.Mallocs) / per,
	}
	if peer != nil {
		b.ReportMetric(peer.nanoseconds/c.nanoseconds, "x-faster")
		b.ReportMetric(peer.bytes/c.bytes, "x-fewer-bytes")
		b.ReportMetric(peer.allocations/c.allocations, "x-fewer-allocs")
	}
	return c
}

// BenchmarkOneChange is what a full set with one changed pod costs from the source's hands to the subscriber's,
// decoding left aside: the kubelet's merge, whose sources decode all pods anew; ours with the same (decoded); and ours
// as our sources give it, which keep what has not changed (kept). Ours print how many times less than the kubelet's
// they cost.
func BenchmarkOneChange(b *testing.B) {
	for _, size := range []int{110, 500} {
		var peer *cost
		b.Run(fmt.Sprintf("pods=%d/kubelet", size), func(b *testing.B) {
			c := benchKubelet(b, size)
			peer = &c
		})
		b.Run(fmt.Sprintf("pods=%d/decoded", size), func(b *testing.B) { benchOurs(b, size, false, peer) })
		b.Run(fmt.Sprintf("pods=%d/kept", size), func(b *testing.B) { benchOurs(b, size, true, peer) })
	}
}

func benchKubelet(b *testing.B, size int) cost {
	b.Helper()
	k := newKubelet(config.PodConfigNotificationIncremental)
	defer k.close()
	// The kubelet keeps the pods that it is given first, so it has a set for itself, and compares the others with it in
	// full.
	both, to, updates := twoSets(size, false), k.to[kubetypes.FileSource], k.merge.Updates()
	to <- kubetypes.PodUpdate{Op: kubetypes.SET, Source: kubetypes.FileSource, Pods: twoSets(size, false)[0]}
	<-updates
	return measure(b, nil, func(n int) {
		to <- kubetypes.PodUpdate{Op: kubetypes.SET, Source: kubetypes.FileSource, Pods: both[n%2]}
		if u := <-updates; u.Op != kubetypes.UPDATE || len(u.Pods) != 1 {
			b.Fatalf("%d pods of operation %s, want an update of one", len(u.Pods), operation(u.Op))
		}
	})
}

func benchOurs(b *testing.B, size int, kept bool, peer *cost) {
	b.Helper()
	o := newOurs(b, configv1.Mode_MODE_INCREMENTAL)
	defer o.close()
	var both [2][]source.Pod
	for i, pods := range twoSets(size, kept) {
		for _, p := range pods {
			both[i] = append(both[i], source.Pod{Path: "/manifests/" + p.Name + ".yaml", Pod: p})
		}
	}
	o.mux.Set(kubetypes.FileSource, source.Reading{Pods: both[0]})
	for o.next().Key != mux.SourceKey(kubetypes.FileSource) {
	}
	measure(b, peer, func(n int) {
		o.mux.Set(kubetypes.FileSource, source.Reading{Pods: both[n%2]})
		if u := o.next().Value.Pod; u.GetOp() != configv1.Op_OP_UPDATE || o.decode(u) == nil {
			b.Fatalf("%v, want an update", u.GetOp())
		}
		if m := o.next(); m.Key != mux.SourceKey(kubetypes.FileSource) {
			b.Fatalf("%s, want the state of the source", m.Key)
		}
	})
}
