package oracle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	theirs "k8s.io/kubernetes/pkg/kubelet/eviction"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/eviction"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// Intended differences, which the test does not generate:
//
//   - Thresholds in percent of a count, such as of inodes, and thresholds in decimal units of bytes: the kubelet
//     reports them in their units, Quartet in the units of the available amount, because nodestatus publishes the
//     amount.
//   - A separate file system for the layers of containers, for which the kubelet has its own signals. containerd and
//     CRI-O do not report one here.
//   - Volumes in memory are not checked against their size limit here, because the kernel enforces it. The kubelet
//     checks them until it resizes such volumes while a pod runs.
//   - A critical pod that cannot be evicted: the kubelet reports it in each round, Quartet skips it.

const (
	mebi = 1 << 20
	// mostLeft is the largest threshold in bytes, mostCount the largest threshold of a count; half of the threshold is
	// available.
	mostLeft, mostCount = 400 * mebi, 5000
	// maxGrace is evictionMaxPodGracePeriod.
	maxGrace = 30
	// softGrace is the time for which a soft threshold must be crossed before pods are evicted.
	softGrace = 5 * time.Second
	// long is the time limit of each side, on a fake clock.
	long = 3 * time.Minute
)

// shortage is a node that has run short of a resource.
type shortage struct {
	signal    string
	hard      bool
	dedicated bool
	split     bool
	limits    bool
	pods      []*v1.Pod
	stats     []statsv1alpha1.PodStats
}

// ending is the eviction of a pod.
type ending struct {
	Pod                         types.UID
	Grace                       int64
	Reason, Message, Disruption string
	Annotations                 map[string]string
}

// TestPodsAreEvictedAsTheKubeletDoes compares the pods, their order, the messages and the grace periods.
func TestPodsAreEvictedAsTheKubeletDoes(t *testing.T) {
	for _, signal := range signals {
		t.Run(signal, func(t *testing.T) {
			short, beyond := 0, 0
			rapid.Check(t, func(rt *rapid.T) {
				s := shortageOf(rt, signal)
				want, got := endings(t, s.byKubelet), endings(t, s.byQuartet)
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					rt.Fatalf("(-kubelet +ours):\n%s", diff)
				}
				for _, e := range want {
					if e.Disruption != "" {
						short++
					} else {
						beyond++
					}
				}
			})
			if short == 0 || beyond == 0 {
				t.Errorf("%d pods were evicted for the shortage and %d for their limits, want some of both", short, beyond)
			}
		})
	}
}

// endings returns the evictions by one of the two, in a bubble with a fake clock.
func endings(t *testing.T, by func(t *testing.T, end func(ending))) (all []ending) {
	synctest.Test(t, func(t *testing.T) { by(t, func(e ending) { all = append(all, e) }) })
	return all
}

// left returns the pods that were not evicted.
func (s *shortage) left(ended map[types.UID]bool) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(s.pods), func(pod *v1.Pod) bool { return ended[pod.UID] })
}

// byKubelet runs the kubelet's manager until it finds no more pod to evict.
func (s *shortage) byKubelet(t *testing.T, end func(ending)) {
	ended := map[types.UID]bool{}
	told := &recorder{}
	kill := func(pod *v1.Pod, _ bool, grace *int64, change func(*v1.PodStatus)) error {
		status := v1.PodStatus{}
		change(&status)
		e := ending{
			Pod: pod.UID, Grace: *grace, Reason: status.Reason, Message: status.Message, Annotations: told.annotations,
		}
		for _, c := range status.Conditions {
			if c.Type == v1.DisruptionTarget {
				e.Disruption = c.Message
			}
		}
		ended[pod.UID] = true
		end(e)
		return nil
	}
	// The kubelet ignores thresholds of containerfs and takes those of nodefs.
	name := strings.Replace(s.signal, "containerfs", "nodefs", 1)
	threshold := evictionapi.Threshold{Signal: evictionapi.Signal(name), Operator: evictionapi.OpLessThan}
	threshold.Value.Quantity = resource.NewQuantity(mostLeft, resource.BinarySI)
	if counts(s.signal) {
		threshold.Value.Quantity = resource.NewQuantity(mostCount, resource.DecimalSI)
	}
	if !s.hard {
		threshold.GracePeriod = softGrace
	}
	config := theirs.Config{MaxPodGracePeriodSeconds: maxGrace, Thresholds: []evictionapi.Threshold{threshold}}
	manager, _ := theirs.NewManager(
		s, config, kill, nothing{}, nothing{}, told, &v1.ObjectReference{}, clock.RealClock{}, s.limits,
	)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	left := func() []*v1.Pod { return s.left(ended) }
	cleanedUp := func(*v1.Pod) bool { return true }
	manager.Start(ctx, disks{s.dedicated, s.split}, left, cleanedUp, 10*time.Second)
	<-time.After(long)
	cancel()
	synctest.Wait()
}

// byQuartet runs Quartet's evictor, which gets the pressed signal every ten seconds.
func (s *shortage) byQuartet(t *testing.T, end func(ending)) {
	ended, booted := map[types.UID]bool{}, time.Now()
	evictor := eviction.New(eviction.Config{
		Stats: ours{s}, Limits: s.limits, Pods: func() ([]*v1.Pod, error) { return s.left(ended), nil },
		Spared: func(pod *v1.Pod) bool {
			return admission.IsCritical(pod, podset.IsStaticSource(pod.Annotations[podset.AnnotationSource]))
		},
		Evict: func(_ context.Context, uid types.UID, e podstore.Eviction, grace int64, annotations map[string]string) error {
			ended[uid] = true
			end(ending{
				Pod: uid, Grace: grace, Reason: e.Reason, Message: e.Message, Disruption: e.Disruption, Annotations: annotations,
			})
			return nil
		},
		Gone: func(types.UID) bool { return true }, RemoveContainers: func(context.Context) {},
		RemoveEvicted: func(context.Context) {}, RemoveImages: func(context.Context) error { return nil },
		MaxGrace: maxGrace, Clock: clock.RealClock{}, BootTime: func() time.Duration { return time.Since(booted) },
		Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = evictor.Run(ctx) }() // it returns the error of ctx
	for begun := time.Now(); time.Since(begun) < long; <-time.After(10 * time.Second) {
		least := int64(mostLeft)
		if counts(s.signal) {
			least = mostCount
		}
		evictor.Pressing([]*nodev1.EvictionSignal{
			{Signal: s.signal, Available: least / 2, Threshold: least, Hard: s.hard, ReadAt: timestamppb.Now()},
		})
		synctest.Wait()
	}
	cancel()
	synctest.Wait()
}

// Get implements the kubelet's stats.SummaryProvider: half of the threshold is available of the short resource, and
// everything of the others.
func (s *shortage) Get(context.Context, bool) (*statsv1alpha1.Summary, error) {
	now := metav1.Now()
	const all = 1000 * mostLeft
	left := func(signal string) *uint64 {
		switch {
		case signal != s.signal:
			return ptr.To[uint64](all)
		case counts(signal):
			return ptr.To[uint64](mostCount / 2)
		default:
			return ptr.To[uint64](mostLeft / 2)
		}
	}
	memory := func(signal string) *statsv1alpha1.MemoryStats {
		return &statsv1alpha1.MemoryStats{Time: now, AvailableBytes: left(signal), WorkingSetBytes: ptr.To[uint64](all)}
	}
	fs := func(name string) *statsv1alpha1.FsStats {
		return &statsv1alpha1.FsStats{
			Time: now, AvailableBytes: left(name + ".available"), CapacityBytes: ptr.To[uint64](2 * all),
			InodesFree: left(name + ".inodesFree"), Inodes: ptr.To[uint64](2 * all),
		}
	}
	processes := ptr.To[int64](all)
	most := ptr.To(*processes + int64(*left("pid.available")))
	return &statsv1alpha1.Summary{Pods: s.stats, Node: statsv1alpha1.NodeStats{
		Memory: memory("memory.available"), Fs: fs("nodefs"), Runtime: &statsv1alpha1.RuntimeStats{
			ImageFs: fs("imagefs"), ContainerFs: fs("containerfs"),
		},
		SystemContainers: []statsv1alpha1.ContainerStats{
			{Name: statsv1alpha1.SystemContainerPods, Memory: memory("allocatableMemory.available")},
		},
		Rlimit: &statsv1alpha1.RlimitStats{Time: now, MaxPID: most, NumOfRunningProcesses: processes},
	}}, nil
}

// GetCPUAndMemoryStats implements the kubelet's stats.SummaryProvider.
func (s *shortage) GetCPUAndMemoryStats(ctx context.Context) (*statsv1alpha1.Summary, error) {
	return s.Get(ctx, false)
}

// ours implements the dependencies of Quartet's Evictor.
type ours struct{ *shortage }

func (o ours) Summary(ctx context.Context) (*statsv1alpha1.Summary, error) { return o.Get(ctx, true) }

func (o ours) Disks() stats.Disks {
	switch {
	case o.split:
		return stats.SplitDisks
	case o.dedicated:
		return stats.ImageDisk
	}
	return stats.OneDisk
}

// disks tells whether images have their own file system, and whether containers have another one than images.
type disks struct{ dedicated, split bool }

func (d disks) HasDedicatedImageFs(context.Context) (bool, error)     { return d.dedicated, nil }
func (d disks) HasDedicatedContainerFs(context.Context) (bool, error) { return d.split, nil }

// nothing implements the removals and removes nothing.
type nothing struct{}

func (nothing) DeleteUnusedImages(context.Context) error        { return nil }
func (nothing) DeleteAllUnusedContainers(context.Context) error { return nil }

// recorder records the annotations of the last event of a pod.
type recorder struct {
	record.EventRecorder
	annotations map[string]string
}

func (*recorder) Eventf(runtime.Object, string, string, string, ...any) {}
func (r *recorder) AnnotatedEventf(_ runtime.Object, annotations map[string]string, _, _, _ string, _ ...any) {
	r.annotations = annotations
}

var signals = []string{
	"memory.available", "allocatableMemory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available",
	"containerfs.available", "containerfs.inodesFree",
}

func counts(signal string) bool {
	return strings.HasSuffix(signal, ".inodesFree") || signal == "pid.available"
}

// shortageOf draws a node with up to six pods that is short of the resource of a signal.
func shortageOf(t *rapid.T, signal string) *shortage {
	s := &shortage{
		signal: signal, hard: rapid.Bool().Draw(t, "hard"),
		dedicated: rapid.Bool().Draw(t, "dedicated"), limits: rapid.Bool().Draw(t, "limits"),
	}
	s.split = strings.HasPrefix(s.signal, "containerfs") || s.dedicated && rapid.Bool().Draw(t, "split")
	s.dedicated = s.dedicated || s.split
	for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
		pod := usingPodOf(t, i)
		s.pods = append(s.pods, pod)
		if rapid.IntRange(0, 5).Draw(t, "known") > 0 {
			s.stats = append(s.stats, statsOf(t, pod))
		}
	}
	return s
}

// one draws one of several values.
func one[T any](t *rapid.T, label string, of ...T) T { return rapid.SampledFrom(of).Draw(t, label) }

// someOf draws an amount of memory, of disk, of both or of neither.
func someOf(t *rapid.T, label string) v1.ResourceList {
	all := v1.ResourceList{}
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		if n := one[int64](t, label, -1, -1, 0, 1, 3, 10); n >= 0 {
			all[name] = *resource.NewQuantity(n*mebi, resource.BinarySI)
		}
	}
	return all
}

func usingPodOf(t *rapid.T, i int) *v1.Pod {
	name := fmt.Sprint("pod-", i)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name),
		Annotations: map[string]string{podset.AnnotationSource: one(t, "source", "api", "api", "api", "api", "file")},
	}}
	pod.Spec.Priority = one(t, "priority", nil, ptr.To[int32](0), ptr.To[int32](-5), ptr.To[int32](7), ptr.To[int32](2_000_000_000))
	pod.Spec.TerminationGracePeriodSeconds = one(t, "grace", nil, ptr.To[int64](5), ptr.To[int64](100))
	for _, kind := range []string{"main", "other", "init", "sidecar"} {
		if kind != "main" && !rapid.Bool().Draw(t, kind) {
			continue
		}
		c := v1.Container{Name: kind}
		c.Resources.Requests, c.Resources.Limits = someOf(t, "request"), someOf(t, "limit")
		switch kind {
		case "sidecar":
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
			fallthrough
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		}
	}
	if one(t, "as a whole", true, false, false, false) {
		whole := someOf(t, "of the whole")
		delete(whole, v1.ResourceEphemeralStorage) // a pod as a whole cannot request ephemeral storage
		pod.Spec.Resources = &v1.ResourceRequirements{Requests: whole}
	}
	if one(t, "overhead", true, false, false, false) {
		pod.Spec.Overhead = someOf(t, "of the sandbox")
	}
	for _, source := range []v1.VolumeSource{
		{EmptyDir: &v1.EmptyDirVolumeSource{}}, {EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}},
		{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumHugePages}}, {ConfigMap: &v1.ConfigMapVolumeSource{}},
		{Secret: &v1.SecretVolumeSource{}},
	} {
		if !rapid.Bool().Draw(t, "volume") {
			continue
		}
		if size := one[int64](t, "size", -1, -1, 0, 2, 8); source.EmptyDir != nil && source.EmptyDir.Medium != v1.StorageMediumMemory && size >= 0 {
			source.EmptyDir.SizeLimit = resource.NewQuantity(size*mebi, resource.BinarySI)
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{
			Name: fmt.Sprint("volume-", len(pod.Spec.Volumes)), VolumeSource: source,
		})
	}
	return pod
}

// statsOf draws the usage of a pod, parts of which may be unknown.
func statsOf(t *rapid.T, pod *v1.Pod) statsv1alpha1.PodStats {
	amount := func(label string) *uint64 { return ptr.To(one[uint64](t, label, 0, 1, 2, 3, 5, 12) * mebi) }
	memory := func(label string) *statsv1alpha1.MemoryStats {
		if one(t, label, true, false, false, false, false) {
			return nil
		}
		return &statsv1alpha1.MemoryStats{WorkingSetBytes: amount(label)}
	}
	fs := func(label string) *statsv1alpha1.FsStats {
		return &statsv1alpha1.FsStats{
			UsedBytes: amount(label), InodesUsed: ptr.To(one[uint64](t, label, 0, 1, 70, 3_000_000)),
		}
	}
	stats := statsv1alpha1.PodStats{
		PodRef: statsv1alpha1.PodReference{Name: pod.Name, UID: string(pod.UID)}, Memory: memory("memory"),
	}
	if n := one(t, "processes", -1, 0, 1, 7, 90); n >= 0 {
		stats.ProcessStats = &statsv1alpha1.ProcessStats{ProcessCount: ptr.To(uint64(n))}
	}
	if rapid.Bool().Draw(t, "disk") {
		stats.EphemeralStorage = fs("disk")
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers, []v1.Container{{Name: "debug"}}) {
		if one(t, "runs", true, true, true, false) {
			container := statsv1alpha1.ContainerStats{Name: c.Name, Memory: memory("container")}
			if one(t, "layer", true, true, true, false) {
				container.Rootfs = fs("layer")
			}
			if one(t, "logs", true, true, true, false) {
				container.Logs = fs("logs")
			}
			stats.Containers = append(stats.Containers, container)
		}
	}
	for _, v := range pod.Spec.Volumes {
		if one(t, "measured", true, true, true, false) {
			stats.VolumeStats = append(stats.VolumeStats, statsv1alpha1.VolumeStats{Name: v.Name, FsStats: *fs("volume")})
		}
	}
	return stats
}
