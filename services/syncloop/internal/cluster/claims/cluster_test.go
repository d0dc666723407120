package claims_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

// shared is the cluster of these tests.
var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

const (
	driverName = "disk.example.com"
	patience   = time.Minute
)

// rig is a node of a real API server with its own namespace and rights.
type rig struct {
	*claims.Cluster

	t          *testing.T
	node, shop string
	admin      *kubernetes.Clientset
	proxy      *cluster.Proxy
	notified   chan types.UID
}

func newRig(t *testing.T, name string, clock clock.WithTicker) *rig {
	t.Helper()
	c := shared.Cluster(t)
	r := &rig{t: t, admin: c.Client(t), proxy: c.Proxy(t), notified: make(chan types.UID, 1000)}
	named := metav1.ObjectMeta{GenerateName: name + "-"}
	node := created(t, r.admin.CoreV1().Nodes().Create, &v1.Node{ObjectMeta: named})
	namespace := created(t, r.admin.CoreV1().Namespaces().Create, &v1.Namespace{ObjectMeta: named})
	r.node, r.shop = node.Name, namespace.Name
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: r.proxy.Kubeconfig(t, cluster.NodeUser(r.node), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50,
		Burst: 100, ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	storage, err := client.Group(storagev1.SchemeGroupVersion, storagev1.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	r.Cluster = claims.NewCluster(claims.Config{
		Core: client.Core, Storage: storage, NodeName: r.node,
		Changed: func(uid types.UID) { r.notified <- uid }, Clock: clock,
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		client.Close()
	})
	return r
}

// created creates or changes an object.
func created[T any](t *testing.T, create func(context.Context, *T, metav1.CreateOptions) (*T, error), object *T) *T {
	t.Helper()
	out, err := create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func updated[T any](t *testing.T, update func(context.Context, *T, metav1.UpdateOptions) (*T, error), object *T) *T {
	t.Helper()
	out, err := update(t.Context(), object, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// remove deletes a claim.
func (r *rig) remove(name string) {
	r.t.Helper()
	pvcs := r.admin.CoreV1().PersistentVolumeClaims(r.shop)
	if err := pvcs.Delete(r.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// claimVolume is a volume of a pod with the claim "data".
func claimVolume() v1.Volume {
	return v1.Volume{Name: "files", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}
}

// use creates a pod on the node with volumes, and calls Use for it.
func (r *rig) use(name string, volumes ...v1.Volume) *v1.Pod {
	r.t.Helper()
	pod := created(r.t, r.admin.CoreV1().Pods(r.shop).Create, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName: r.node, Containers: []v1.Container{{Name: "c", Image: "i:1"}}, Volumes: volumes,
			AutomountServiceAccountToken: ptr.To(false),
		},
	})
	r.Use(pod)
	return pod
}

// claim creates the claim "data".
func (r *rig) claim() *v1.PersistentVolumeClaim {
	r.t.Helper()
	return created(r.t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).Create, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: ptr.To(""),
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	})
}

// bind creates a CSI volume for a claim and binds both, as the controllers of a cluster do.
func (r *rig) bind(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	r.t.Helper()
	volume := created(r.t, r.admin.CoreV1().PersistentVolumes().Create, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pv-"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: claim.Spec.AccessModes,
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: "handle/of-" + string(claim.UID),
				NodeStageSecretRef: &v1.SecretReference{Namespace: r.shop, Name: "login"},
			}},
		},
	})
	claim.Spec.VolumeName = volume.Name
	claim = updated(r.t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).Update, claim)
	claim.Status.Phase, claim.Status.Capacity = v1.ClaimBound, volume.Spec.Capacity
	return updated(r.t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).UpdateStatus, claim)
}

// awaitNotified waits until a pod is notified, and forgets earlier notifications.
func (r *rig) awaitNotified(pod *v1.Pod) {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case uid := <-r.notified:
			if uid == pod.UID {
				return
			}
		case <-timeout:
			r.t.Fatalf("pod %s was not told", pod.Name)
		}
	}
}

func (r *rig) untell() {
	for len(r.notified) > 0 {
		<-r.notified
	}
}

// gives returns the name of the persistent volume of a pod's first volume, or the error.
func (r *rig) gives(pod *v1.Pod) string {
	_, pv, err := r.Claim(r.t.Context(), pod, &pod.Spec.Volumes[0])
	if err != nil {
		return err.Error()
	}
	return pv.Name
}

// comesTo waits until a function returns a text.
func comesTo(t *testing.T, want string, state func() string) {
	t.Helper()
	eventually.Wait{Interval: 20 * time.Millisecond, State: state}.
		That(t, want, func() bool { return strings.Contains(state(), want) })
}

func causeOf(err error) claims.Cause {
	if failure := (*claims.Error)(nil); errors.As(err, &failure) {
		return failure.Cause
	}
	return ""
}

// TestAPodIsToldWhenItsClaimIsBound uses the rights of a node.
func TestAPodIsToldWhenItsClaimIsBound(t *testing.T) {
	r := newRig(t, "binder", clock.RealClock{})
	pod := r.use("web", claimVolume())
	processing := "error processing PVC " + r.shop + "/data: "
	comesTo(t, processing+`failed to fetch PVC from API server: persistentvolumeclaims "data" not found`, func() string { return r.gives(pod) })
	r.untell()
	claim := r.claim()
	r.awaitNotified(pod)
	_, _, err := r.Claim(t.Context(), pod, &pod.Spec.Volumes[0])
	if causeOf(err) != claims.CauseNotBound || err.Error() != processing+"PVC is not bound" {
		t.Errorf("got %v", err)
	}
	r.untell()
	claim = r.bind(claim)
	r.awaitNotified(pod)
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
	got, pv, err := r.Claim(t.Context(), pod, &pod.Spec.Volumes[0])
	if err != nil || got.UID != claim.UID || pv.Spec.CSI.Driver != driverName {
		t.Errorf("got %v, %v, %v", got, pv, err)
	}

	r.proxy.Refuse(t)
	r.proxy.Cut()
	if got := r.gives(pod); got != claim.Spec.VolumeName {
		t.Errorf("while the API server is away: %s, want %s", got, claim.Spec.VolumeName)
	}
	r.Forget(pod.UID)
	r.Use(pod) // nothing is known any more
	_, _, err = r.Claim(t.Context(), pod, &pod.Spec.Volumes[0])
	unknown := processing + "failed to fetch PVC from API server: "
	if causeOf(err) != claims.CauseUnknown || !strings.HasPrefix(err.Error(), unknown) {
		t.Errorf("got %v", err)
	}
	r.untell()
	r.proxy.Accept(t)
	r.awaitNotified(pod)
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
	r.proxy.Swallow()
	second := r.use("second", claimVolume())
	began := time.Now()
	if got := r.gives(second); got != claim.Spec.VolumeName || time.Since(began) > 10*time.Second {
		t.Errorf("while the API server does not answer: %s after %v", got, time.Since(began))
	}
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
}

func TestTheVolumeOfAnotherClaimIsRefused(t *testing.T) {
	r := newRig(t, "thief", clock.RealClock{})
	pod := r.use("web", claimVolume())
	stale := r.claim()
	r.bind(stale)
	comesTo(t, "pv-", func() string { return r.gives(pod) })
	// Somebody deletes the claim by force, and creates one of its name.
	stale, err := r.admin.CoreV1().PersistentVolumeClaims(r.shop).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stale.Finalizers = nil
	updated(t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).Update, stale)
	r.remove("data")
	other := r.claim()
	other.Spec.VolumeName = stale.Spec.VolumeName
	other = updated(t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).Update, other)
	other.Status.Phase = v1.ClaimBound
	other = updated(t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).UpdateStatus, other)
	second := r.use("second", claimVolume()) // a new pod gets the current objects
	want := "found PV object " + stale.Spec.VolumeName + " but its pv.Spec.ClaimRef.UID " + string(stale.UID) +
		" does not point to claim.UID " + string(other.UID)
	comesTo(t, want, func() string { return r.gives(second) })
	_, _, err = r.Claim(t.Context(), second, &second.Spec.Volumes[0])
	if causeOf(err) != claims.CauseMismatch {
		t.Errorf("got %v", err)
	}
}

// TestAClaimOfAnotherNamespaceIsNotFound has a bound claim of the name that a pod of another namespace names.
func TestAClaimOfAnotherNamespaceIsNotFound(t *testing.T) {
	theirs := newRig(t, "theirs", clock.RealClock{})
	owner := theirs.use("web", claimVolume())
	claim := theirs.bind(theirs.claim())
	comesTo(t, claim.Spec.VolumeName, func() string { return theirs.gives(owner) })

	ours := newRig(t, "ours", clock.RealClock{})
	pod := ours.use("web", claimVolume())
	comesTo(t, "error processing PVC "+ours.shop+`/data: failed to fetch PVC from API server: persistentvolumeclaims "data" not found`,
		func() string { return ours.gives(pod) })
}

func TestAClaimThatIsDeletedIsUsedAsLongAsItIsProtected(t *testing.T) {
	fake := testingclock.NewFakeClock(time.Now())
	r := newRig(t, "deleter", fake)
	claim := r.bind(r.claim())
	pod := r.use("web", claimVolume())
	comesTo(t, claim.Spec.VolumeName, func() string { return r.gives(pod) })
	r.untell()
	claim.Finalizers = append(claim.Finalizers, "example.com/keep")
	updated(t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).Update, claim)
	r.remove("data")
	next := func() { // the next periodic request
		eventually.That(t, "there is a ticker", fake.HasWaiters)
		fake.Step(claims.Refresh + 10*time.Second)
	}
	next()
	r.awaitNotified(pod)
	if got, _, err := r.Claim(t.Context(), pod, &pod.Spec.Volumes[0]); err != nil || got.DeletionTimestamp == nil {
		t.Errorf("a protected claim: %v, %v", got, err)
	}
	claim, err := r.admin.CoreV1().PersistentVolumeClaims(r.shop).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Finalizers = []string{"example.com/keep"}
	updated(t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).Update, claim)
	next()
	r.awaitNotified(pod)
	_, _, err = r.Claim(t.Context(), pod, &pod.Spec.Volumes[0])
	if causeOf(err) != claims.CauseDeleting || !strings.HasSuffix(err.Error(), ": PVC is being deleted") {
		t.Errorf("got %v", err)
	}
}

func TestAnEphemeralClaimMustBeThePods(t *testing.T) {
	r := newRig(t, "owner", clock.RealClock{})
	template := v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		}},
	}}}
	pod := r.use("web", template)
	make := func(owners ...metav1.OwnerReference) *v1.PersistentVolumeClaim {
		return created(t, r.admin.CoreV1().PersistentVolumeClaims(r.shop).Create, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "web-scratch", OwnerReferences: owners},
			Spec:       template.Ephemeral.VolumeClaimTemplate.Spec,
		})
	}
	r.bind(make())
	want := "PVC " + r.shop + "/web-scratch was not created for pod " + r.shop + "/web (pod is not owner)"
	comesTo(t, want, func() string { return r.gives(pod) })
	r.untell()
	claims := r.admin.CoreV1().PersistentVolumeClaims(r.shop)
	if _, err := claims.Patch(t.Context(), "web-scratch", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	r.remove("web-scratch")
	r.bind(make(*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))))
	r.awaitNotified(pod)
	comesTo(t, "pv-", func() string { return r.gives(pod) })
}
