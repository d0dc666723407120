package siteobjects

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/test/eventually"
)

// apiServer is an API server that counts what it sends. It answers lists and watches of core/v1.
type apiServer struct {
	t *testing.T

	mu sync.Mutex
	// objects has the objects of each resource, by "NAMESPACE/NAME".
	objects map[string]map[string]runtime.Object
	// sent counts how often each object was sent, and requests the requests.
	sent     map[string]int
	requests map[string]int
	// watches has the changes for each open watch.
	watches map[chan change]string
}

type change struct {
	kind, name string
	object     runtime.Object
}

// put creates or changes an object.
func (a *apiServer) put(resource, name string, object runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]runtime.Object{}
	}
	kind := "ADDED"
	if a.objects[resource][name] != nil {
		kind = "MODIFIED"
	}
	a.objects[resource][name] = object
	for watch, selected := range a.watches {
		if isSelected(selected, resource, name) {
			watch <- change{kind: kind, name: resource + " " + name, object: object}
		}
	}
}

// isSelected reports whether the path and the query of a request select an object.
func isSelected(request, resource, name string) bool {
	place, selector, _ := strings.Cut(request, "?")
	namespace, object := path.Split(name)
	if path.Base(place) != resource || namespace != "" && !strings.Contains(place, "/namespaces/"+namespace) {
		return false
	}
	wanted, byName := strings.CutPrefix(selector, "metadata.name=")
	return !byName || wanted == object
}

// ServeHTTP implements http.Handler.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request := r.URL.Path + "?" + r.URL.Query().Get("fieldSelector")
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		a.list(w, request)
		return
	}
	changes := make(chan change, 100)
	a.mu.Lock()
	a.requests["watch "+request]++
	a.watches[changes] = request
	a.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			a.mu.Lock()
			delete(a.watches, changes)
			a.mu.Unlock()
			return
		case c := <-changes:
			a.mu.Lock()
			a.sent[c.name]++
			a.mu.Unlock()
			_ = json.NewEncoder(w).Encode(map[string]any{"type": c.kind, "object": c.object})
			w.(http.Flusher).Flush()
		}
	}
}

func (a *apiServer) list(w http.ResponseWriter, request string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests["list "+request]++
	items := []runtime.Object{}
	for resource, objects := range a.objects {
		for name, object := range objects {
			if isSelected(request, resource, name) {
				a.sent[resource+" "+name]++
				items = append(items, object)
			}
		}
	}
	kind := map[string]string{
		"configmaps": "ConfigMapList", "secrets": "SecretList", "persistentvolumeclaims": "PersistentVolumeClaimList",
		"persistentvolumes": "PersistentVolumeList", "services": "ServiceList",
	}[path.Base(strings.Split(request, "?")[0])]
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": "v1", "metadata": map[string]string{"resourceVersion": "1"}, "items": items,
	})
}

// counts returns how often each object was sent, and the requests.
func (a *apiServer) counts() (sent, requests map[string]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sent, requests = map[string]int{}, map[string]int{}
	for name, n := range a.sent {
		sent[name] = n
	}
	for name, n := range a.requests {
		requests[name] = n
	}
	return sent, requests
}

// connect returns an API server, and a client of it.
func connect(t *testing.T) (*apiServer, rest.Interface) {
	t.Helper()
	a := &apiServer{
		t: t, objects: map[string]map[string]runtime.Object{}, sent: map[string]int{}, requests: map[string]int{},
		watches: map[chan change]string{},
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client, err := rest.RESTClientForConfigAndClient(&rest.Config{
		Host: server.URL, APIPath: "/api", QPS: -1, ContentConfig: rest.ContentConfig{
			GroupVersion: &v1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion(),
			ContentType: runtime.ContentTypeJSON,
		},
	}, &http.Client{Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return a, client
}

// about returns the metadata and the type of an object.
func about(kind, namespace, name string, version int) (metav1.TypeMeta, metav1.ObjectMeta) {
	return metav1.TypeMeta{APIVersion: "v1", Kind: kind},
		metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: fmt.Sprint(version)}
}

// putAll puts what the pods of a test name: a config map, a secret, a claim with a volume that names a secret, and
// services.
func (a *apiServer) putAll(version int) {
	kind, meta := about("ConfigMap", "shop", "settings", version)
	a.put("configmaps", "shop/settings", &v1.ConfigMap{TypeMeta: kind, ObjectMeta: meta})
	for _, name := range []string{"login", "disk"} {
		kind, meta = about("Secret", "shop", name, version)
		a.put("secrets", "shop/"+name, &v1.Secret{TypeMeta: kind, ObjectMeta: meta})
	}
	kind, meta = about("PersistentVolumeClaim", "shop", "data", version)
	a.put("persistentvolumeclaims", "shop/data", &v1.PersistentVolumeClaim{
		TypeMeta: kind, ObjectMeta: meta, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"},
	})
	kind, meta = about("PersistentVolume", "", "pv", version)
	volume := &v1.PersistentVolume{TypeMeta: kind, ObjectMeta: meta}
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data"}
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{
		NodePublishSecretRef: &v1.SecretReference{Namespace: "shop", Name: "disk"},
	}
	a.put("persistentvolumes", "pv", volume)
	for _, name := range []string{"shop/web", "default/kubernetes", "default/other"} {
		kind, meta = about("Service", path.Dir(name), path.Base(name), version)
		service := &v1.Service{TypeMeta: kind, ObjectMeta: meta}
		service.Spec.ClusterIP, service.Spec.Ports = fmt.Sprint("10.0.0.", version), []v1.ServicePort{{Port: 80}}
		a.put("services", name, service)
	}
}

// namingPod returns a pod that names what putAll puts.
func namingPod() source.Pod {
	p := pod("p", "login")
	p.Spec.EnableServiceLinks = nil
	p.Spec.Volumes = []v1.Volume{
		{VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "settings"},
		}}},
		{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}
	return p
}

// holds returns the numbers of objects of each kind in the stream of a node that contain a text.
func holds(n *Node, text string) string {
	counts := map[string]int{}
	for _, o := range n.objects() {
		if bytes.Contains(o.GetObject(), []byte(text)) {
			counts[o.GetKind()]++
		}
	}
	return fmt.Sprint(counts)
}

// TestTheUplinkCarriesEachObjectOnce: however many nodes have pods that name it, each object is requested by one list
// and one watch, and it and each change of it are sent once, and reach every node.
func TestTheUplinkCarriesEachObjectOnce(t *testing.T) {
	api, client := connect(t)
	api.putAll(1001)
	o := newObjects(t.TempDir(), &bytes.Buffer{})
	o.cfg.Client = client
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { o.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	var nodes []*Node
	for range 20 {
		n := o.NewNode()
		n.want()
		n.Use(source.Reading{Pods: []source.Pod{namingPod()}})
		nodes = append(nodes, n)
	}
	all := map[apiobject.Kind]int{
		apiobject.ConfigMap: 1, apiobject.Secret: 2, apiobject.Claim: 1, apiobject.Volume: 1, apiobject.Service: 1,
		apiobject.Services: 1,
	}
	for version := 1001; version <= 1003; version++ {
		if version > 1001 {
			api.putAll(version)
		}
		for i, n := range nodes {
			eventually.That(t, fmt.Sprintf("node %d has version %d", i, version), func() bool {
				return holds(n, fmt.Sprint(version)) == fmt.Sprint(all)
			})
		}
		if version == 1001 {
			eventually.That(t, "all is watched", func() bool {
				api.mu.Lock()
				defer api.mu.Unlock()
				return len(api.watches) == 7
			})
		}
	}
	// No node shows a service that has no effect on its containers, such as default/other.
	eventually.That(t, "each change has been sent", func() bool {
		sent, _ := api.counts()
		return len(sent) == 8 && !slices.ContainsFunc(slices.Collect(maps.Values(sent)), func(n int) bool { return n < 3 })
	})
	sent, requests := api.counts()
	if len(sent) != 8 || len(requests) != 14 {
		t.Errorf("sent %v by %v, want 8 objects by 7 lists and 7 watches", sent, requests)
	}
	for name, n := range sent {
		if n != 3 {
			t.Errorf("%s was sent %d times, want 3: as it was at first, and each of 2 changes", name, n)
		}
	}
	for request, n := range requests {
		if n != 1 {
			t.Errorf("%s was requested %d times, want once", request, n)
		}
	}
}

// TestAChangeThatNoContainerSeesIsNotSent: nodes get of a service what is in the environment of containers.
func TestAChangeThatNoContainerSeesIsNotSent(t *testing.T) {
	o := newObjects(t.TempDir(), &bytes.Buffer{})
	n := o.NewNode()
	n.want()
	n.Use(source.Reading{Pods: []source.Pod{namingPod()}})
	key := servicesKey("shop")
	w := &several{all: o, key: key, held: o.held[key]}
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	w.Listed([]runtime.Object{service}, o.cfg.Clock.Now())
	before := n.uses[key].sent
	changed := service.DeepCopy()
	changed.ResourceVersion, changed.Labels = "2", map[string]string{"a": "b"}
	w.Changed(changed)
	if n.uses[key].sent != before {
		t.Error("a change of labels is sent")
	}
	changed.Spec.ClusterIP = "10.0.0.2"
	w.Changed(changed)
	if n.uses[key].sent == before {
		t.Error("a change of the address is not sent")
	}
	w.Deleted(changed)
	if got := n.uses[key].sent; got.GetMissing() || bytes.Contains(got.GetObject(), []byte("web")) {
		t.Errorf("without services the node has %v", got)
	}
}

// TestSecretsOfAVolumeComeWithItsOwnClaimOnly: a claim that names the volume of another one leads neither to the volume
// nor to its secrets, also after a restart.
func TestSecretsOfAVolumeComeWithItsOwnClaimOnly(t *testing.T) {
	dir := t.TempDir()
	o := newObjects(dir, &bytes.Buffer{})
	named := pod("p")
	named.Spec.Volumes = []v1.Volume{
		{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}
	follow := func(o *Objects) *Node {
		n := o.NewNode()
		n.want()
		n.Use(source.Reading{Pods: []source.Pod{named}})
		return n
	}
	n := follow(o)
	o.answerFact(claimKey("data"), fact{text: "1", volume: "v1"})
	o.answerFact(volumeKey("v1"), fact{text: "1", claim: "another"})
	o.answerFact(secretKey("three"), fact{text: "1"})
	if got := holds(n, ""); got != "map[PersistentVolumeClaim:1]" {
		t.Errorf("with the volume of another claim the node has %s", got)
	}
	if _, asked := o.held[secretKey("three")]; asked {
		t.Error("the secret of the volume of another claim is requested")
	}
	o.answerFact(volumeKey("v1"), fact{text: "2", claim: "data"})
	o.answerFact(secretKey("three"), fact{text: "1"})
	const all = "map[PersistentVolume:1 PersistentVolumeClaim:1 Secret:1]"
	if got := holds(n, ""); got != all {
		t.Errorf("with the volume of its claim the node has %s, want %s", got, all)
	}
	o.stopped()
	again := newObjects(dir, &bytes.Buffer{})
	again.Load()
	again.NewNode().Use(source.Reading{Pods: []source.Pod{named}}) // its syncloop has not connected yet
	again.Settle()
	if got := holds(follow(again), ""); got != all {
		t.Errorf("after a restart it has %s, want %s", got, all)
	}
}
