package nodevolumes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// A volume is made as Kubernetes' provisioner makes it, once, and another process knows it.
func TestTheVolumeOfAClaimIsMadeOnce(t *testing.T) {
	r := newRig(t)
	r.addClass(func(c *storagev1.StorageClass) {
		c.Parameters[parameterPrefix+"provisioner-secret-name"] = "${pvc.name}-key"
		c.Parameters[parameterPrefix+"provisioner-secret-namespace"] = "${pvc.namespace}"
		c.Parameters[parameterPrefix+"node-stage-secret-name"] = "${pvc.annotations['key']}"
		c.Parameters[parameterPrefix+"node-stage-secret-namespace"] = "${pv.name}"
	})
	r.set(func(w *world) {
		w.secrets["shop/data-key"] = &v1.Secret{Data: map[string][]byte{"password": []byte("p")}}
	})
	c := claim("u1", "2Mi", func(c *v1.PersistentVolumeClaim) { c.Annotations = map[string]string{"key": "stage"} })
	volume := r.provide(c)
	request := called[*csi.CreateVolumeRequest](r, "CreateVolume")
	mount := request.GetVolumeCapabilities()[0].GetMount()
	if request.GetName() != "pvc-u1" || request.GetCapacityRange().GetRequiredBytes() != 2<<20 || len(request.GetParameters()) != 1 ||
		request.GetParameters()["kind"] != "ssd" || request.GetSecrets()["password"] != "p" || mount.GetFsType() != "xfs" ||
		mount.GetMountFlags()[0] != "noatime" || request.GetAccessibilityRequirements() != nil {
		t.Errorf("asked with %v", request)
	}
	spec := volume.PV.Spec
	if spec.CSI.VolumeHandle != "pvc-u1" || spec.CSI.FSType != "xfs" || spec.StorageClassName != "fast" || volume.Capacity.String() != "2Mi" ||
		spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete ||
		*spec.VolumeMode != v1.PersistentVolumeFilesystem ||
		*spec.CSI.NodeStageSecretRef != (v1.SecretReference{Name: "stage", Namespace: "pvc-u1"}) || spec.ClaimRef.Name != "data" ||
		volume.PV.Annotations[annotationSecretName] != "data-key" {
		t.Errorf("the volume is %+v", volume.PV)
	}
	r.next(nil)
	if again := r.provide(c); again.PV.Spec.CSI.VolumeHandle != "pvc-u1" || r.calls("CreateVolume") != 1 {
		t.Errorf("another process has %+v, after %d calls", again.PV, r.calls("CreateVolume"))
	}
}

// A disk that is full at the start has no directory for records. The driver is not asked before there is a record.
func TestAVolumeIsMadeWhenItsRecordCanBeWritten(t *testing.T) {
	r := newRig(t)
	r.dir = filepath.Join(r.dir, "absent", "state")
	r.next(nil)
	if _, err := r.Provide(t.Context(), claim("u1", "2Mi")); err == nil || r.calls("CreateVolume") != 0 {
		t.Errorf("without a directory there are %d volumes, error %v", r.calls("CreateVolume"), err)
	}
	must(t, os.Mkdir(filepath.Dir(r.dir), 0o700))
	r.provide(claim("u1", "2Mi"))
	equal(t, "the records are", r.onDisk(), []string{"pvc-u1.json"})
}

func TestAClaimWaitsForWhatItsVolumeNeeds(t *testing.T) {
	r := newRig(t)
	for want, prepare := range map[string]func(){
		`storageclass.storage.k8s.io "fast" not found: apply it`: func() { delete(r.classes, "fast") },
		"driver name dirs.example.com not found in the list of registered CSI drivers: is it running on this node?": func() {
			r.set(func(w *world) { w.away = true })
		},
		"driver name other.example.com not found": func() {
			r.addClass(func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" })
		},
		"has the provisioner kubernetes.io/no-provisioner": func() {
			r.addClass(func(c *storagev1.StorageClass) { c.Provisioner = noProvisioner })
		},
		"failed to get secret key in namespace shop": func() {
			r.addClass(func(c *storagev1.StorageClass) {
				c.Parameters = map[string]string{
					parameterPrefix + "provisioner-secret-name": "key", parameterPrefix + "provisioner-secret-namespace": "shop",
				}
			})
		},
		"give both csi.storage.k8s.io/node-stage-secret-name and": func() {
			r.addClass(func(c *storagev1.StorageClass) { c.Parameters[parameterPrefix+"node-stage-secret-name"] = "key" })
		},
		`found unknown parameter key "csi.storage.k8s.io/x"`: func() {
			r.addClass(func(c *storagev1.StorageClass) { c.Parameters[parameterPrefix+"x"] = "y" })
		},
		`"pvc.uid" of the claim shop/data is not known`: func() {
			r.addClass(func(c *storagev1.StorageClass) {
				c.Parameters[parameterPrefix+"node-stage-secret-name"] = "${pvc.uid}"
				c.Parameters[parameterPrefix+"node-stage-secret-namespace"] = "shop"
			})
		},
		"give csi.storage.k8s.io/fstype or fstype, not both": func() {
			r.addClass(func(c *storagev1.StorageClass) { c.Parameters[fsTypeOld] = "ext4" })
		},
		"CreateVolume fails as asked": func() { r.driver.Set("CreateVolume", csidriver.Fails) },
	} {
		prepare()
		_, err := r.Provide(t.Context(), claim("u1", "1Mi"))
		if err == nil || !strings.HasPrefix(err.Error(), `failed to provision volume with StorageClass "fast": `) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if problem := r.Known("u1").Problem; problem == nil || !strings.Contains(problem.Error(), want) {
			t.Errorf("the claim waits for %v, want %s", problem, want)
		}
		r.set(func(w *world) { w.away = false })
		r.addClass(func(*storagev1.StorageClass) {})
		r.driver.Set("CreateVolume", csidriver.None)
	}
	equal(t, "records", r.onDisk(), nil)
	r.Tell()
	equal(t, "told", r.told, []string{"shop/data"})
	if r.provide(claim("u1", "1Mi")); r.Known("u1").Problem != nil {
		t.Errorf("the claim waits for %v", r.Known("u1").Problem)
	}
	if _, err := r.Provide(t.Context(), claim("u2", "1Mi", func(c *v1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = ptr.To("slow")
	})); err == nil || r.Release("u2") != nil {
		t.Errorf("a class that there is not: %v", err)
	}
}

// TestAPodIsToldOfTheSecretsOfItsVolume checks that the pods of a claim are told of the secrets for the calls of the
// node, which wait for them only in a retry.
func TestAPodIsToldOfTheSecretsOfItsVolume(t *testing.T) {
	r := newRig(t)
	r.addClass(func(c *storagev1.StorageClass) {
		for _, purpose := range []string{"node-stage", "node-publish", "node-expand"} {
			c.Parameters[parameterPrefix+purpose+"-secret-name"] = purpose
			c.Parameters[parameterPrefix+purpose+"-secret-namespace"] = "shop"
		}
	})
	r.provide(claim("u1", "1Mi"))
	r.next(nil)
	r.set(func(w *world) { w.told = nil })
	for _, name := range []string{"node-stage", "node-publish", "node-expand", "other"} {
		r.TellSecret("shop", name)
	}
	r.TellSecret("elsewhere", "node-stage")
	equal(t, "told", r.told, []string{"shop/data", "shop/data", "shop/data"})
	must(t, r.Release("u1"))
	r.TellSecret("shop", "node-stage")
	equal(t, "told of after the claim", r.told[3:], []string{})
}

func TestTheTopologyOfAClassMustHaveTheNode(t *testing.T) {
	zone := func(values ...string) *storagev1.StorageClass {
		return &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast"}, AllowedTopologies: []v1.TopologySelectorTerm{
				{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: values}}},
			},
		}
	}
	node := map[string]string{"zone": "a"}
	if err := checkTopology(zone("b", "a"), node); err != nil {
		t.Error(err)
	}
	if err := checkTopology(zone("b"), node); err == nil || !strings.Contains(err.Error(), "exclude this node") {
		t.Errorf("another zone: %v", err)
	}
}

// A volume is deleted with its claim when nobody uses it, or retained; a claim of the same UID gets another volume.
func TestAReleasedVolumeIsDeletedOrRetained(t *testing.T) {
	r := newRig(t)
	r.run()
	first := r.provide(claim("u1", "1Mi"))
	r.use(first.PV, true)
	must(t, r.Release("u1"))
	r.addClass(func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr.To(v1.PersistentVolumeReclaimRetain) })
	second := r.provide(claim("u1", "1Mi"))
	if second.PV.Name == first.PV.Name || len(r.Released()) != 1 || r.calls("DeleteVolume") != 0 {
		t.Errorf("the second volume is %s, the first %s; released %v", second.PV.Name, first.PV.Name, r.Released())
	}
	r.use(first.PV, false)
	eventually.That(t, "the volume is deleted", func() bool { return len(r.Released()) == 0 })
	must(t, r.Release("u1"))
	r.stop()
	r.next(nil)
	must(t, r.steps())
	equal(t, "volumes of the driver", r.inDriver(), []string{second.PV.Name})
	equal(t, "records", r.onDisk(), []string{second.PV.Name + ".json", second.PV.Name + ".released"})
	if got := r.Released(); len(got) != 1 || got[0].PV.Status.Phase != v1.VolumeReleased {
		t.Errorf("released: %v", got)
	}
}

// A volume that does not wait for a pod is made in the background, once, also by the next process.
func TestAVolumeIsMadeWithoutAPod(t *testing.T) {
	r := newRig(t)
	r.set(func(w *world) { w.away = true })
	r.Begin(claim("u1", "1Mi"))
	r.Begin(claim("u1", "1Mi"))
	const failed = `failed to provision volume with StorageClass "fast": `
	if err := r.steps(); err == nil || !strings.Contains(err.Error(), failed) {
		t.Errorf("without the classes: %v", err)
	}
	r.set(func(w *world) { w.away = false })
	r.driver.Set("CreateVolume", csidriver.Fails)
	if err := r.steps(); err == nil {
		t.Error("a failure is a success")
	}
	r.driver.Set("CreateVolume", csidriver.None)
	r.next(nil)
	r.Begin(claim("u1", "1Mi"))
	must(t, r.steps())
	equal(t, "told", r.told, []string{"shop/data"})
	equal(t, "volumes of the driver", r.inDriver(), []string{"pvc-u1"})
	if volume := r.provide(claim("u1", "1Mi")); volume.PV.Name != "pvc-u1" {
		t.Errorf("a pod gets %v", volume)
	}
	must(t, r.Release("u1"))
	must(t, r.steps())
	equal(t, "volumes of the driver", r.inDriver(), nil)
}

// A claim that is deleted while its volume is being made leaves nothing.
func TestAClaimIsDeletedWhileItsVolumeIsBegun(t *testing.T) {
	r := newRig(t)
	r.driver.Set("CreateVolume", csidriver.Hangs)
	r.run()
	r.Begin(claim("u1", "1Mi"))
	eventually.That(t, "the driver is asked", func() bool { return r.calls("CreateVolume") > 0 })
	if err := r.Release("u1"); err == nil {
		t.Error("a volume that is being made is released")
	}
	r.driver.Set("CreateVolume", csidriver.None)
	eventually.That(t, "the volume is made, and released", func() bool { return r.Release("u1") == nil })
	eventually.That(t, "nothing is left", func() bool { return len(r.onDisk()) == 0 && len(r.inDriver()) == 0 })
}

// A retained volume is forgotten when the user says so, and no other one.
func TestARetainedVolumeIsForgotten(t *testing.T) {
	r := newRig(t)
	fails := func(name, want string) {
		t.Helper()
		if _, _, err := r.Forget(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("forgetting %s: %v, want %s", name, err, want)
		}
	}
	deleted := r.provide(claim("u1", "1Mi")).PV
	r.addClass(func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr.To(v1.PersistentVolumeReclaimRetain) })
	pv := r.provide(claim("u2", "1Mi")).PV
	_, err := r.Attachment(t.Context(), driverName, pv.Spec.CSI.VolumeHandle)
	must(t, err)
	r.use(pv, true)
	fails("pvc-u3", "there is no such persistent volume")
	fails(pv.Name, "it is the volume of the claim shop/data")
	must(t, r.Release("u2"))
	must(t, r.Release("u1"))
	fails(pv.Name, "it is still in use")
	fails(deleted.Name, "its driver is asked to delete it")
	r.use(pv, false)
	fails(pv.Name, "attached to the node")
	must(t, r.steps())
	driver, handle, err := r.Forget(t.Context(), pv.Name)
	if err != nil || driver != driverName || handle != pv.Spec.CSI.VolumeHandle {
		t.Errorf("forgotten: %s, %s, %v", driver, handle, err)
	}
	fails(pv.Name, "there is no such persistent volume")
	equal(t, "records", r.onDisk(), nil)
	equal(t, "volumes of the driver", r.inDriver(), []string{pv.Name})
	r.next(nil)
	if got := r.Released(); len(got) > 0 {
		t.Errorf("released after a restart: %v", got)
	}
}

// A volume is attached while it is in use, also across a restart, and detached before it is deleted.
func TestAVolumeIsAttachedWhileItIsInUse(t *testing.T) {
	r := newRig(t)
	pv := r.provide(claim("u1", "1Mi")).PV
	r.use(pv, true)
	for range 2 {
		values, err := r.Attachment(t.Context(), driverName, pv.Spec.CSI.VolumeHandle)
		if err != nil || values["node"] != "machine-1" {
			t.Errorf("the publish context is %v, %v", values, err)
		}
		must(t, r.steps())
		r.next(nil)
	}
	if r.calls("ControllerPublishVolume") != 1 || r.calls("ControllerUnpublishVolume") != 0 {
		t.Errorf("calls %v", r.driver.Calls(""))
	}
	must(t, r.Release("u1"))
	r.use(pv, false)
	must(t, r.steps())
	if r.calls("ControllerUnpublishVolume") != 1 {
		t.Errorf("calls %v", r.driver.Calls(""))
	}
	equal(t, "volumes of the driver", r.inDriver(), nil)
	if values, err := r.Attachment(t.Context(), driverName, "unknown"); values != nil || err != nil {
		t.Errorf("a volume of nobody: %v, %v", values, err)
	}
}

// A volume grows with its claim if its class and its driver permit it, and never shrinks.
func TestAVolumeGrowsWithItsClaim(t *testing.T) {
	r := newRig(t)
	c := claim("u1", "1Mi")
	r.provide(c)
	r.addClass(func(c *storagev1.StorageClass) { c.AllowVolumeExpansion = nil })
	larger := claim("u1", "3Mi")
	r.provide(larger)
	if err := r.steps(); err == nil || !strings.Contains(err.Error(), "has no allowVolumeExpansion") {
		t.Errorf("a class that does not allow it: %v", err)
	}
	r.addClass(func(*storagev1.StorageClass) {})
	must(t, r.steps())
	equal(t, "told", r.told, []string{"shop/data"})
	volume := r.provide(larger)
	size := volume.PV.Spec.Capacity[v1.ResourceStorage]
	if size.String() != "3Mi" || volume.Capacity.String() != "1Mi" {
		t.Errorf("the volume has %s, the claim %s", size.String(), volume.Capacity.String())
	}
	bound := larger.DeepCopy()
	bound.Spec.VolumeName = volume.PV.Name
	bound, err := r.MarkExpanded(t.Context(), bound, size)
	must(t, err)
	if got := bound.Status.Capacity[v1.ResourceStorage]; got.String() != "3Mi" {
		t.Errorf("the claim has %s", got.String())
	}
	r.next(nil)
	if volume := r.provide(c); volume.Capacity.String() != "3Mi" || r.steps() != nil || r.calls("ControllerExpandVolume") != 1 {
		t.Errorf("the claim has %s, calls %v", volume.Capacity.String(), r.driver.Calls(""))
	}
}

// A driver that hangs holds up who waits for it, and nobody else.
func TestADriverThatHangsDelaysItsCallerOnly(t *testing.T) {
	r := newRig(t)
	r.run()
	r.driver.Set("CreateVolume", csidriver.Hangs)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	failed := make(chan error, 1)
	go func() {
		_, err := r.Provide(ctx, claim("u1", "1Mi"))
		failed <- err
	}()
	eventually.That(t, "the driver is asked", func() bool { return r.calls("CreateVolume") > 0 })
	if err := r.Release("u1"); err == nil {
		t.Error("a volume that is being made is released")
	}
	if volume := r.Known("u1"); volume.PV != nil || len(r.Released()) != 0 {
		t.Errorf("known: %v", volume)
	}
	cancel()
	if err := <-failed; err == nil {
		t.Error("the volume is made")
	}
	r.driver.Set("CreateVolume", csidriver.None)
	must(t, r.Release("u1"))
	eventually.That(t, "nothing is left", func() bool { return len(r.onDisk()) == 0 && len(r.inDriver()) == 0 })
}
