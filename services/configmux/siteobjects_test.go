package configmux

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

// naming returns a change of a pod that names a config map or secrets.
func naming(configMap string, secrets ...string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		for _, s := range secrets {
			pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: s})
		}
		pod.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{
			{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: configMap}}},
		}
	}
}

// putSecret creates or replaces a secret with one value.
func (r *siteRig) putSecret(name, value string) {
	r.t.Helper()
	s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"k": []byte(value)}}
	secrets := r.admin.CoreV1().Secrets("default")
	_, err := secrets.Update(r.t.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		_, err = secrets.Create(r.t.Context(), s, metav1.CreateOptions{})
	}
	must(r.t, err)
}

// objects reads the stream of a node's objects, and returns what it has: "KIND/NAME" with the value of the key k, or
// "missing"; and whether the source is ready.
func (n *siteNode) objects(request *configv1.WatchObjectsRequest) (objects map[string]string, ready bool) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	defer cancel()
	out, err := n.client.WatchObjects(ctx, request, grpc.WaitForReady(true))
	must(n.t, err)
	objects = map[string]string{}
	for {
		m, err := out.Recv()
		if status.Code(err) == codes.Unavailable {
			return nil, false
		}
		must(n.t, err)
		switch o := m.GetObject(); {
		case m.GetSource() != nil:
			ready = m.GetSource().GetReady()
		case o.GetMissing():
			objects[o.GetKind()+"/"+o.GetName()] = "missing"
		case o != nil:
			objects[o.GetKind()+"/"+o.GetName()] = n.value(o)
		}
		if m.GetFrame().GetKind().String() == "KIND_SYNCED" {
			return objects, ready
		}
	}
}

// value returns what a test tells an object by: a value, the name of what it is bound to, or names.
func (n *siteNode) value(o *configv1.Object) string {
	n.t.Helper()
	switch o.GetKind() {
	case "Secret":
		s := &v1.Secret{}
		must(n.t, s.Unmarshal(o.GetObject()))
		return string(s.Data["k"])
	case "PersistentVolumeClaim":
		c := &v1.PersistentVolumeClaim{}
		must(n.t, c.Unmarshal(o.GetObject()))
		return c.Spec.VolumeName
	case "PersistentVolume":
		p := &v1.PersistentVolume{}
		must(n.t, p.Unmarshal(o.GetObject()))
		return p.Spec.ClaimRef.Name
	case "Service":
		s := &v1.Service{}
		must(n.t, s.Unmarshal(o.GetObject()))
		return s.Name
	case "ServiceList":
		all := &v1.ServiceList{}
		must(n.t, all.Unmarshal(o.GetObject()))
		var names []string
		for i := range all.Items {
			names = append(names, all.Items[i].Name)
		}
		return strings.Join(names, " ")
	}
	c := &v1.ConfigMap{}
	must(n.t, c.Unmarshal(o.GetObject()))
	return c.Data["k"]
}

// putVolume creates a claim, the volume that it is bound to, and a service.
func (r *siteRig) putVolume(claim, volume, secret, service string) {
	r.t.Helper()
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	_, err := r.admin.CoreV1().PersistentVolumes().Create(r.t.Context(), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: "default", Name: claim},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: "disk.example.com", VolumeHandle: "h",
				NodeStageSecretRef: &v1.SecretReference{Namespace: "default", Name: secret},
			}},
		},
	}, metav1.CreateOptions{})
	must(r.t, err)
	_, err = r.admin.CoreV1().PersistentVolumeClaims("default").Create(r.t.Context(), &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: volume, Resources: v1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	must(r.t, err)
	_, err = r.admin.CoreV1().Services("default").Create(r.t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(r.t, err)
}

// claiming returns a change of a pod that names a claim, besides another change.
func claiming(claim string, other func(*v1.Pod)) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		other(pod)
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
}

// unlinked returns a change of a pod whose environment has no services, besides another change.
func unlinked(other func(*v1.Pod)) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		other(pod)
		pod.Spec.EnableServiceLinks = new(bool)
	}
}

// objectsComeTo waits until the node has these objects, from the API server or not.
func (n *siteNode) objectsComeTo(ready bool, want map[string]string) {
	n.t.Helper()
	eventually.That(n.t, fmt.Sprintf("%s has %v, ready %t", n.name, want, ready), func() bool {
		got, isReady := n.objects(&configv1.WatchObjectsRequest{})
		return maps.Equal(got, want) && isReady == ready
	})
}

// TestNodesOfASiteGetTheirOwnObjects: those that its pods name, as they change, and with the API server away and
// everything restarted; an intruder gets none of another node.
func TestNodesOfASiteGetTheirOwnObjects(t *testing.T) {
	c := shared.Cluster(t)
	proxy := c.Proxy(t)
	kubeconfig := proxy.Kubeconfig(t, "site", cluster.Masters)
	r := newSiteRig(t, c, nodeconfig.Nodes{Names: []string{"obj-a", "obj-b"}}, kubeconfig)
	configMap := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "obj-shared"}, Data: map[string]string{"k": "shared"}}
	_, err := r.admin.CoreV1().ConfigMaps("default").Create(t.Context(), configMap, metav1.CreateOptions{})
	must(t, err)
	r.putSecret("obj-login", "hunter2")
	r.putSecret("obj-nobody", "for no node")
	r.putSecret("obj-disk", "for the driver")
	r.putVolume("obj-data", "obj-pv", "obj-disk", "obj-web")
	r.create("oa-one", "obj-a", claiming("obj-data", naming("obj-shared", "obj-login", "obj-later")))
	r.create("ob-one", "obj-b", unlinked(naming("obj-shared")))
	r.run()
	a, b := r.as(t, "obj-a"), r.as(t, "obj-b")
	ofA := map[string]string{
		"ConfigMap/obj-shared": "shared", "Secret/obj-login": "hunter2", "Secret/obj-later": "missing",
		"PersistentVolumeClaim/obj-data": "obj-pv", "PersistentVolume/obj-pv": "obj-data",
		"Secret/obj-disk": "for the driver", "Service/kubernetes": "kubernetes", "ServiceList/": "kubernetes obj-web",
	}
	ofB := map[string]string{"ConfigMap/obj-shared": "shared", "Service/kubernetes": "kubernetes"}
	a.objectsComeTo(true, ofA)
	b.objectsComeTo(true, ofB)

	r.putSecret("obj-login", "changed")
	r.putSecret("obj-later", "came")
	ofA["Secret/obj-login"], ofA["Secret/obj-later"] = "changed", "came"
	a.objectsComeTo(true, ofA)
	must(t, r.admin.CoreV1().Secrets("default").Delete(t.Context(), "obj-later", metav1.DeleteOptions{}))
	ofA["Secret/obj-later"] = "missing"
	a.objectsComeTo(true, ofA)

	// Whatever a node asks for, it gets what is its own.
	for _, kind := range []string{"PersistentVolume", "PersistentVolumeClaim", "ServiceList"} {
		if got, _ := b.objects(&configv1.WatchObjectsRequest{Kind: kind}); len(got) > 0 {
			t.Errorf("obj-b asks for the kind %s and gets %v", kind, got)
		}
	}
	for _, name := range []string{"obj-login", "obj-nobody"} {
		for _, request := range []*configv1.WatchObjectsRequest{
			{Kind: "Secret", Namespace: "default", Name: name}, {Kind: "Secret"}, {Name: name},
		} {
			if got, _ := b.objects(request); got["Secret/"+name] != "" {
				t.Errorf("obj-b asks for %v and gets %v", request, got)
			}
		}
	}
	summaries, err := b.client.ListObjects(t.Context(), &configv1.ListObjectsRequest{})
	must(t, err)
	if got := summaries.GetObjects(); len(got) != 1 || got[0].GetName() != "obj-shared" {
		t.Errorf("obj-b lists %v", got)
	}
	laptop := configv1.NewConfigServiceClient(r.connect(t, r.authority, authority.Request{Name: "laptop"}))
	for name, client := range map[string]configv1.ConfigServiceClient{"the socket": r.client, "an observer": laptop} {
		_, listErr := client.ListObjects(t.Context(), &configv1.ListObjectsRequest{})
		watch, err := client.WatchObjects(t.Context(), &configv1.WatchObjectsRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		for call, err := range map[string]error{"WatchObjects": err, "ListObjects": listErr} {
			if status.Code(err) != codes.FailedPrecondition {
				t.Errorf("%s by %s: %v, want %s", call, name, err, codes.FailedPrecondition)
			}
		}
	}

	// The API server is away, and configmux restarts.
	r.stop()
	file, err := os.ReadFile(filepath.Join(r.cfg.StateDir, "site", "objects"))
	must(t, err)
	if !bytes.Contains(file, []byte("obj-login")) || bytes.Contains(file, []byte("changed")) {
		t.Errorf("the checkpoint is %s", file)
	}
	proxy.Refuse(t)
	r.run()
	a.objectsComeTo(false, ofA)
	b.objectsComeTo(false, ofB)
	r.putSecret("obj-login", "later")
	proxy.Accept(t)
	ofA["Secret/obj-login"] = "later"
	a.objectsComeTo(true, ofA)
	b.objectsComeTo(true, ofB)

	// A node leaves the objects of its last pod.
	r.remove("ob-one", 0)
	b.objectsComeTo(true, map[string]string{})
}
