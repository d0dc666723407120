package csi_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/test/csidriver"
)

// waits checks the secrets whose change pods wait for.
func (r *rig) waits(want ...string) {
	r.t.Helper()
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(r.cluster.refused))); diff != "" {
		r.t.Errorf("what the pods wait for (-want +got):\n%s", diff)
	}
}

// TestAPodWaitsForAChangeOfTheSecretsThatItsDriverHasRefused has a driver that fails with each of the secrets, and then
// succeeds. The pod waits for those that the driver was called with, and no longer than until the volume is mounted.
func TestAPodWaitsForAChangeOfTheSecretsThatItsDriverHasRefused(t *testing.T) {
	r := newRig(t, canStage)
	pv := newPV("pv-1", "vol-1")
	pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "ns", Name: "stage"}
	pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "publish"}
	one := r.request(newPod("u1"), pv)
	fails := func() {
		t.Helper()
		if _, err := r.plugin.Mount(t.Context(), one); err == nil {
			t.Error("it is mounted")
		}
	}
	fails() // the secrets are missing, which the cluster knows
	r.waits()
	for _, name := range []string{"stage", "publish"} {
		r.cluster.secrets["ns/"+name] = &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{"key": []byte("wrong")},
		}
	}
	r.driver.Set("NodeStageVolume", csidriver.Fails)
	fails()
	r.waits("u1 ns/publish", "u1 ns/stage")
	r.driver.Set("NodeStageVolume", csidriver.None)
	r.driver.Set("NodePublishVolume", csidriver.Fails)
	fails()
	r.waits("u1 ns/publish", "u1 ns/stage")
	r.driver.Set("NodePublishVolume", csidriver.None)
	r.mount(one)
	r.waits()
	r.unmount(one.Dir)
	r.ends()
}

// TestAPodWaitsForAChangeOfTheSecretOfAnExpansion has a volume in use, which its pod keeps.
func TestAPodWaitsForAChangeOfTheSecretOfAnExpansion(t *testing.T) {
	r := newRig(t, canStage, canExpand)
	one := r.claimed()
	one.PV.Spec.CSI.NodeExpandSecretRef = &v1.SecretReference{Namespace: "ns", Name: "expand"}
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "expand"}}
	r.cluster.secrets["ns/expand"] = secret
	r.mount(one)
	one = grown(one)
	r.driver.Set("NodeExpandVolume", csidriver.Fails)
	r.mount(one)
	r.waits("u1 ns/expand")
	delete(r.cluster.secrets, "ns/expand")
	r.mount(one)
	r.waits("u1 ns/expand") // the cluster knows that it is missing
	r.cluster.secrets["ns/expand"] = secret
	r.driver.Set("NodeExpandVolume", csidriver.None)
	r.mount(one)
	r.waits()
	r.unmount(one.Dir)
	r.ends()
}
