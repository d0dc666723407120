package disks

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/diskfault"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// driverName is the CSI driver of the volumes.
const driverName = "disks.quartet.test"

// clusterFiles are the files that only a node of a cluster has, and the records of CSI volumes.
func clusterFiles() []file {
	return []file{
		{name: "api-pods"}, {name: "kubeconfig", refuses: true}, {name: "pki/**"},
		{name: "root/plugins/kubernetes.io/csi/**", ofPods: true},
	}
}

// clusterRig is a rig whose node has joined a cluster by a token.
type clusterRig struct {
	rig

	admin  kubernetes.Interface
	driver *csidriver.Driver
}

// TestANodeOfAClusterOnAFailingDisk has files of a node of a cluster fail while the node is killed and started. It
// joins the cluster anew if it is its credentials that fail. Pods run on in the same containers; new pods start and
// deleted ones end, or the log names the file; and with the disk well again, all is as the API server wants.
func TestANodeOfAClusterOnAFailingDisk(t *testing.T) {
	r := startInCluster(t)
	all, files := os.Getenv(whole), clusterFiles()
	for _, fault := range faults() {
		if all == "" { // one file for each fault
			rand.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		}
		for i, f := range files {
			if (all == "" && i > 0) || (all != "" && all != "1" && !slices.Contains(strings.Split(all, ","), f.name)) {
				continue
			}
			t.Run(strings.ReplaceAll(f.name, "/", ":")+" "+fault.name, func(t *testing.T) { r.fails(t, f, fault) })
		}
	}
	if wrong := r.driver.Wrong(); len(wrong) > 0 {
		t.Errorf("the driver got wrong calls: %q", wrong)
	}
}

func startInCluster(t *testing.T) *clusterRig {
	t.Helper()
	containerd := harness.StartContainerd(t)
	c := cluster.Start(t, cluster.Controllers())
	bootstrap, _ := c.Bootstrap(t)
	r := &clusterRig{rig: rig{disk: diskfault.New(t), bin: harness.BinDir(t)}, admin: c.Client(t)}
	dir := filepath.Join(containerd.StateDir, "node")
	r.node = harness.StartNodeIn(t, containerd, dir, func(cmd *exec.Cmd) {
		cmd.Args = append(cmd.Args, "--bootstrap-kubeconfig="+bootstrap, "--kubeconfig="+filepath.Join(dir, "kubeconfig"))
		r.disk.Wrap(cmd)
	})
	r.serveDriver(t)
	r.createPod(t, "kept", "")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually.In(ctx, t, "the first pod is ready", func() bool { return harness.Ready(r.node.Pod(ctx, "kept")) })
	r.kept = container(r.node.Pod(ctx, "kept"))
	return r
}

// path returns the path of a file of the node.
func (r *clusterRig) path(name string) string { return filepath.Join(r.node.Layout.StateDir(), name) }

// serveDriver serves a CSI driver that the node registers.
func (r *clusterRig) serveDriver(t *testing.T) {
	t.Helper()
	dir := filepath.Join(r.node.Containerd.StateDir, "driver")
	r.driver = csidriver.New(dir, csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		err = r.driver.Serve()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.driver.Stop)
	registered := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		registered <- csidriver.Register(ctx, r.path("root/plugins_registry"), driverName, r.driver.Socket())
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-registered; err != nil {
			t.Error(err)
		}
	})
	_, err = r.admin.StorageV1().CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// createVolume creates a volume of the driver, with a claim of the same name.
func (r *clusterRig) createVolume(t *testing.T, name string) {
	t.Helper()
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	access := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	err := os.MkdirAll(r.driver.Volume(name), 0o700)
	if err == nil {
		_, err = r.admin.CoreV1().PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PersistentVolumeSpec{
				Capacity: size, AccessModes: access, ClaimRef: &v1.ObjectReference{Namespace: "default", Name: name},
				PersistentVolumeSource: v1.PersistentVolumeSource{
					CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name},
				},
			},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = r.admin.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: access, StorageClassName: ptr.To(""), VolumeName: name,
				Resources: v1.VolumeResourceRequirements{Requests: size},
			},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// createPod creates a pod of the node, which has a claim if that is not empty. It is named like a static pod.
func (r *clusterRig) createPod(t *testing.T, name, claim string) {
	t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-node", Namespace: "default"},
		Spec: v1.PodSpec{
			NodeName: "node", TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{
				Name: "hello", Image: "quartet.local/hello:1", ImagePullPolicy: v1.PullIfNotPresent, Args: []string{"serve"},
			}},
		},
	}
	if claim != "" {
		r.createVolume(t, claim)
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
	eventually.That(t, "the pod is created", func() bool { // the service account may not exist yet
		_, err := r.admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		return err == nil
	})
}

func (r *clusterRig) deletePod(t *testing.T, name string) {
	t.Helper()
	err := r.admin.CoreV1().Pods("default").Delete(t.Context(), name+"-node", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// isDeleted reports whether the API server has a pod no longer.
func (r *clusterRig) isDeleted(ctx context.Context, name string) bool {
	_, err := r.admin.CoreV1().Pods("default").Get(ctx, name+"-node", metav1.GetOptions{})
	return apierrors.IsNotFound(err)
}

// fails is one cell.
func (r *clusterRig) fails(t *testing.T, f file, how fault) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	r.turn++
	goes, added := r.of("goes"), r.of("new")
	r.createPod(t, goes, r.of("data"))
	eventually.In(ctx, t, "the pod with a volume is ready", func() bool { return harness.Ready(r.node.Pod(ctx, goes)) })
	said := r.logged(t)
	r.disk.Set(diskfault.Fault{Errno: how.errno, Match: func(path string) bool {
		return f.matches(r.node.Layout.StateDir(), path)
	}})
	r.kill(ctx, t)
	if f.name == "kubeconfig" || f.name == "pki/**" { // the node joins anew
		if err := errors.Join(os.Remove(r.path("kubeconfig")), os.RemoveAll(r.path("pki"))); err != nil {
			t.Fatal(err)
		}
	}
	starts, hasEnded := r.starts(ctx, r.node.Spawn(t))
	if !starts && !(f.refuses && r.says(t, said, f)) {
		t.Errorf("the node does not start, and says %s", r.last(t, said))
	}
	r.deletePod(t, goes)
	r.createPod(t, added, r.of("more"))
	if starts && !r.within(ctx, patience, func(ctx context.Context) bool {
		return (r.away(ctx, goes) && harness.Ready(r.node.Pod(ctx, added))) || r.says(t, said, f) ||
			(f.ofPods && how.errno == 0 && len(r.disk.Hits()) > 0 && r.works(ctx, added))
	}) {
		t.Errorf("the node does not do what the API server wants, and does not name the file: %s", r.last(t, said))
	}
	if starts {
		r.isKept(ctx, t)
	}
	hits := r.disk.Clear()
	t.Logf("%d calls had the fault: %q", len(hits), slices.Compact(slices.Sorted(slices.Values(hits))))
	if hasEnded {
		r.node.Start(t)
	}

	eventually.In(ctx, t, "the deleted pod has ended, and the new one is ready", func() bool {
		return r.isDeleted(ctx, goes) && harness.Ready(r.node.Pod(ctx, added))
	})
	uid := string(r.node.Pod(ctx, added).UID)
	eventually.In(ctx, t, "the checkpoint has the new pod", func() bool {
		content, err := os.ReadFile(r.path("api-pods"))
		return err == nil && strings.Contains(string(content), uid)
	})
	r.kill(ctx, t)
	r.node.Start(t)
	r.isKept(ctx, t)
	r.deletePod(t, added)
	eventually.In(ctx, t, "no volume is staged", func() bool {
		staged, err := filepath.Glob(r.path("root/plugins/kubernetes.io/csi/" + driverName + "/*"))
		return err == nil && len(staged) == 0 && r.isDeleted(ctx, added)
	})
}

// starts waits until the node is healthy or has ended.
func (r *clusterRig) starts(ctx context.Context, ended <-chan error) (healthy, hasEnded bool) {
	r.within(ctx, patience, func(ctx context.Context) bool {
		select {
		case err := <-ended:
			hasEnded = err != nil
		default:
			healthy = r.node.Healthy(ctx)
		}
		return healthy || hasEnded
	})
	return healthy && !hasEnded, hasEnded
}

// isKept checks that the first pod is ready, in the same container.
func (r *clusterRig) isKept(ctx context.Context, t *testing.T) {
	t.Helper()
	eventually.In(ctx, t, "the first pod is ready", func() bool { return harness.Ready(r.node.Pod(ctx, "kept")) })
	if got := container(r.node.Pod(ctx, "kept")); got != r.kept {
		t.Errorf("the first pod ran in %s, and runs in %s", r.kept, got)
		r.kept = got
	}
}
