package persistentvolumes_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
)

// host is a machine with SELinux.
type host struct{}

func (host) Enabled() bool                                  { return true }
func (host) HasLabels(string) (bool, error)                 { return true, nil }
func (host) FileLabel(o *v1.SELinuxOptions) (string, error) { return "file:" + o.Level, nil }

// labeled is a kind that mounts with labels, which it remembers.
type labeled struct {
	folder
	labels map[string]string
}

func (*labeled) MountsLabel(context.Context, persistentvolumes.Request) (bool, error) {
	return true, nil
}
func (*labeled) Plugin(persistentvolumes.Request) string { return "kubernetes.io/folder" }
func (*labeled) KeepsLabel(r persistentvolumes.Request, _ string) (bool, error) {
	return r.Label != "", nil
}

func (l *labeled) Present(dir string) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	label, ok := l.labels[dir]
	return label, ok
}

func (l *labeled) Mount(ctx context.Context, r persistentvolumes.Request) (string, error) {
	path, err := l.folder.Mount(ctx, r)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.labels[r.Dir] = r.Label
	return path, err
}

func (l *labeled) Unmount(ctx context.Context, dir string) error {
	l.mu.Lock()
	delete(l.labels, dir)
	l.mu.Unlock()
	return l.folder.Unmount(ctx, dir)
}

// withLevel returns a pod with a claim and an SELinux level.
func withLevel(uid types.UID, level string) *v1.Pod {
	pod := newPod(uid, claimVolume("files", "data"))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	return pod
}

// TestPodsWithDifferentLabelsDoNotShareAVolume also checks that a running pod keeps its volume across a restart,
// whoever comes first.
func TestPodsWithDifferentLabelsDoNotShareAVolume(t *testing.T) {
	kind := &labeled{labels: map[string]string{}}
	metrics := selinux.NewMetrics(prometheus.NewRegistry())
	r := newRigOf(t, kind, &selinux.Labels{Host: host{}, EveryMode: true, Metrics: metrics})
	red, alsoRed, blue := withLevel("u1", "s0:c1"), withLevel("u2", "s0:c1"), withLevel("u3", "s0:c2")
	for _, pod := range []*v1.Pod{red, alsoRed} {
		if err := r.want(pod); err != nil {
			t.Fatal(err)
		}
		if !r.manager.KeepsLabel(pod, &pod.Spec.Volumes[0]) {
			t.Error("the runtime labels a volume that is mounted with a label")
		}
	}
	const says = `MountVolume.SetUp failed for volume "files" : conflicting SELinux labels of volume pv-1: "file:s0:c1" and "file:s0:c2"`
	if err := r.want(blue); err == nil || err.Error() != says {
		t.Errorf("got %v, want %s", err, says)
	}
	r.stop()
	r.start()
	r.manager.Want(t.Context(), blue)
	for _, pod := range []*v1.Pod{red, alsoRed} {
		if err := r.want(pod); err != nil {
			t.Errorf("after a restart: %v", err)
		}
		r.release(pod.UID)
	}
	if err := r.want(blue); err != nil {
		t.Errorf("after the others have gone: %v", err)
	}
	r.release("u3")
}

func TestAVolumeGivesItsGroupToContainers(t *testing.T) {
	r := newRig(t)
	for name, group := range map[string]string{"data": "1234", "second": "1234", "third": "77", "wrong": "staff", "own": "5"} {
		volume := pv("pv-" + name)
		volume.Annotations = map[string]string{"pv.beta.kubernetes.io/gid": group}
		r.claims[name] = volume
	}
	pod := newPod("u1", claimVolume("a", "data"), claimVolume("b", "second"), claimVolume("c", "third"),
		claimVolume("d", "wrong"), claimVolume("e", "own"))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroups: []int64{5}}
	if err := r.want(pod); err != nil {
		t.Fatal(err)
	}
	if got, want := r.manager.Groups(pod), []int64{77, 1234}; !slices.Equal(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	if other := newPod("u2", claimVolume("a", "data")); len(r.manager.Groups(other)) > 0 {
		t.Error("a pod whose volume is not mounted has its group")
	}
	r.release("u1")
}

// TestVolumesThatKeepTheirLabels has a read-only claim, and kinds that the runtime never labels.
func TestVolumesThatKeepTheirLabels(t *testing.T) {
	r := newRig(t)
	pod := newPod("u1", claimVolume("files", "data"), claimVolume("fixed", "data"),
		v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}})
	pod.Spec.Volumes[1].PersistentVolumeClaim.ReadOnly = true
	r.claims["fixed"] = pv("pv-fixed")
	pod.Spec.Volumes[1].PersistentVolumeClaim.ClaimName = "fixed"
	if err := r.want(pod); err != nil {
		t.Fatal(err)
	}
	var keeps []string
	for i := range pod.Spec.Volumes {
		if r.manager.KeepsLabel(pod, &pod.Spec.Volumes[i]) {
			keeps = append(keeps, pod.Spec.Volumes[i].Name)
		}
	}
	if got := strings.Join(keeps, " "); got != "fixed host" {
		t.Errorf("%q keep their labels, want fixed host", got)
	}
	for _, kind := range []persistentvolumes.LabelKeeper{&persistentvolumes.NFS{}, persistentvolumes.HostPath{}} {
		if keeps, err := kind.KeepsLabel(persistentvolumes.Request{}, ""); err != nil || !keeps {
			t.Errorf("%T: %t, %v", kind, keeps, err)
		}
	}
	r.release("u1")
}
