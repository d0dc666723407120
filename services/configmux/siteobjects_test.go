package configmux

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
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

func (n *siteNode) value(o *configv1.Object) string {
	n.t.Helper()
	if o.GetKind() == "Secret" {
		s := &v1.Secret{}
		must(n.t, s.Unmarshal(o.GetObject()))
		return string(s.Data["k"])
	}
	c := &v1.ConfigMap{}
	must(n.t, c.Unmarshal(o.GetObject()))
	return c.Data["k"]
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
	r.create("oa-one", "obj-a", naming("obj-shared", "obj-login", "obj-later"))
	r.create("ob-one", "obj-b", naming("obj-shared"))
	r.run()
	a, b := r.as(t, "obj-a"), r.as(t, "obj-b")
	ofA := map[string]string{
		"ConfigMap/obj-shared": "shared", "Secret/obj-login": "hunter2", "Secret/obj-later": "missing",
	}
	ofB := map[string]string{"ConfigMap/obj-shared": "shared"}
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
