package siteobjects

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func claimKey(name string) apiobject.Key {
	return apiobject.Key{Kind: apiobject.Claim, Namespace: "shop", Name: name}
}

func volumeKey(name string) apiobject.Key { return apiobject.Key{Kind: apiobject.Volume, Name: name} }

func servicesKey(namespace string) apiobject.Key {
	return apiobject.Key{Kind: apiobject.Services, Namespace: namespace}
}

// fact is an answer of the API server.
type fact struct {
	// text identifies it; "missing" if there is no object.
	text string
	// volume is what a claim is bound to, and claim what a volume is for. A volume names the secret "three".
	volume, claim string
	// api is true for services with that of the API server.
	api bool
}

// answerFact gives an answer, and that for the service of the API server with it.
func (o *Objects) answerFact(key apiobject.Key, f fact) {
	meta := metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, ResourceVersion: f.text}
	switch {
	case f.text == "missing":
		o.says(key, nil)
	case key.Kind == apiobject.Claim:
		claim := &v1.PersistentVolumeClaim{ObjectMeta: meta}
		claim.Spec.VolumeName = f.volume
		o.says(key, claim)
	case key.Kind == apiobject.Volume:
		volume := &v1.PersistentVolume{ObjectMeta: meta}
		volume.Spec.CSI = &v1.CSIPersistentVolumeSource{
			NodeStageSecretRef: &v1.SecretReference{Namespace: "shop", Name: "three"},
		}
		if f.claim != "" {
			volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: f.claim}
		}
		o.says(key, volume)
	case key.Kind == apiobject.Services:
		w := &several{all: o, key: key, held: o.held[key], services: map[string]v1.Service{}}
		w.services["x"] = v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: v1.ServiceSpec{ClusterIP: f.text}}
		if f.api {
			w.services["kubernetes"] = v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
		}
		w.saw()
	default:
		o.says(key, &v1.Secret{ObjectMeta: meta})
	}
}

// model is what nodes should have.
type model struct {
	wanted, listed map[string]bool
	pods           map[string]map[string][]apiobject.Key
	known          map[apiobject.Key]fact
}

// used returns what a node uses, and whether it may have it.
func (m *model) used(node string) map[apiobject.Key]bool {
	all := map[apiobject.Key]bool{}
	if !m.wanted[node] {
		return all
	}
	var named []apiobject.Key
	for _, keys := range m.pods[node] {
		named = append(named, keys...)
	}
	for _, key := range named {
		all[key] = true
	}
	for _, key := range named {
		claim := m.known[key]
		if key == apiService {
			all[apiServices] = all[apiServices] || slices.Contains(named, apiServices)
		}
		if claim.volume == "" {
			continue
		}
		is := m.known[volumeKey(claim.volume)].claim == key.Name
		all[volumeKey(claim.volume)] = is || all[volumeKey(claim.volume)]
		if is {
			all[secretKey("three")] = true
		}
	}
	return all
}

// forget drops what no node uses any more, and what was only used because of it.
func (m *model) forget() {
	for before := -1; before != len(m.known); {
		before = len(m.known)
		used := m.used("a")
		maps.Copy(used, m.used("b"))
		maps.DeleteFunc(m.known, func(key apiobject.Key, _ fact) bool {
			_, is := used[key]
			return !is
		})
	}
}

// drawnKeys returns what a pod names.
func drawnKeys(t *rapid.T, uid string) (source.Pod, []apiobject.Key) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}}
	p.Namespace = rapid.SampledFrom([]string{"shop", "default"}).Draw(t, "namespace")
	keys := []apiobject.Key{apiService}
	if links := rapid.Bool().Draw(t, "links"); links {
		keys = append(keys, servicesKey(p.Namespace))
	} else {
		p.Spec.EnableServiceLinks = &links
	}
	if p.Namespace != "shop" {
		return source.Pod{Pod: p}, keys
	}
	secrets := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"one", "two", "three"}), rapid.ID).Draw(t, "secrets")
	for _, name := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: name})
		keys = append(keys, secretKey(name))
	}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"data", "logs"}), rapid.ID).Draw(t, "claims") {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
		keys = append(keys, claimKey(name))
	}
	return source.Pod{Pod: p}, keys
}

// TestANodeHasTheObjectsOfItsPodsOnly: whatever pods come and go and whatever the API server answers, each node has
// what is known of the objects that its present pods name, of the volumes of their claims, and of the secrets of these,
// and nothing else; an object that no node uses is not held.
func TestANodeHasTheObjectsOfItsPodsOnly(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		o := newObjects(dir, &bytes.Buffer{})
		nodes := map[string]*Node{"a": o.NewNode(), "b": o.NewNode()}
		m := &model{
			wanted: map[string]bool{}, listed: map[string]bool{}, known: map[apiobject.Key]fact{},
			pods: map[string]map[string][]apiobject.Key{"a": {}, "b": {}},
		}
		drawnNode := func(t *rapid.T) string { return rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node") }
		drawnUID := func(t *rapid.T) string { return rapid.SampledFrom([]string{"p", "q"}).Draw(t, "pod") }
		answers := 0
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				node, uid := drawnNode(t), drawnUID(t)
				drawn, keys := drawnKeys(t, uid)
				m.pods[node][uid] = keys
				nodes[node].Use(source.Reading{Op: podset.Update, Pods: []source.Pod{drawn}})
			},
			"remove": func(t *rapid.T) {
				node, uid := drawnNode(t), drawnUID(t)
				delete(m.pods[node], uid)
				nodes[node].Use(source.Reading{Op: podset.Remove, Pods: []source.Pod{pod(uid)}})
			},
			"list": func(t *rapid.T) {
				node := drawnNode(t)
				drawn, keys := drawnKeys(t, "p")
				m.pods[node] = map[string][]apiobject.Key{"p": keys}
				nodes[node].Use(source.Reading{Pods: []source.Pod{drawn}})
				m.listed[node] = true
			},
			"want": func(t *rapid.T) {
				node := drawnNode(t)
				nodes[node].want()
				m.wanted[node] = true
			},
			"fail": func(*rapid.T) { nodes["a"].Use(source.Reading{Failed: true}) },
			"answer": func(t *rapid.T) {
				key := rapid.SampledFrom([]apiobject.Key{
					secretKey("one"), secretKey("two"), secretKey("three"), claimKey("data"), claimKey("logs"),
					volumeKey("v1"), volumeKey("v2"), servicesKey("shop"), apiServices,
				}).Draw(t, "object")
				answers++
				f := fact{text: fmt.Sprint(answers)}
				switch key.Kind { //nolint:exhaustive // the others lead to nothing
				case apiobject.Claim:
					f.volume = rapid.SampledFrom([]string{"", "v1", "v2"}).Draw(t, "volume")
				case apiobject.Volume:
					f.claim = rapid.SampledFrom([]string{"", "data", "logs"}).Draw(t, "claim")
				case apiobject.Services:
					f.api = rapid.Bool().Draw(t, "api")
				}
				if key.Kind != apiobject.Services && rapid.IntRange(0, 3).Draw(t, "is") == 0 {
					f = fact{text: "missing"}
				}
				if o.held[key] != nil {
					m.known[key] = f
					o.answerFact(key, f)
				}
			},
			"": func(t *rapid.T) {
				m.forget()
				for node, n := range nodes {
					m.check(t, node, n)
				}
				all := m.used("a")
				maps.Copy(all, m.used("b"))
				if len(o.held) != len(all) {
					t.Fatalf("%d objects are held, and %d used", len(o.held), len(all))
				}
			},
		})
	})
}

// check compares what a node has with what it should have.
func (m *model) check(t *rapid.T, node string, n *Node) {
	want, ready := map[string]string{}, m.listed[node] && m.wanted[node]
	for key, visible := range m.used(node) {
		f, known := m.known[key]
		if key == apiService {
			f, known = m.known[apiServices]
			if known && !f.api {
				f.text = "missing"
			} else if known {
				f.text = "is"
			}
		}
		if ready = ready && known; known && visible {
			want[key.Path()] = f.text
		}
	}
	if got := has(t, n); !maps.Equal(got, want) {
		t.Fatalf("%s has %v, want %v", node, got, want)
	}
	if n.ready != ready {
		t.Fatalf("%s is ready: %t, want %t", node, n.ready, ready)
	}
}

// has returns the texts of the facts in the stream of a node.
func has(t *rapid.T, n *Node) map[string]string {
	out := map[string]string{}
	for _, entry := range n.level.List() {
		o := entry.Object
		if o == nil {
			continue
		}
		key := apiobject.Key{Kind: apiobject.Kind(o.GetKind()), Namespace: o.GetNamespace(), Name: o.GetName()}
		text := "missing"
		if !o.GetMissing() {
			text = textOf(t, key, o.GetObject())
		}
		out[key.Path()] = text
	}
	return out
}

func textOf(t *rapid.T, key apiobject.Key, data []byte) string {
	var list v1.ServiceList
	object := metav1.ObjectMeta{}
	var err error
	switch key.Kind {
	case apiobject.Services:
		err = list.Unmarshal(data)
		for _, s := range list.Items {
			if s.Name == "x" {
				return s.Spec.ClusterIP
			}
		}
	case apiobject.Service:
		return "is"
	case apiobject.Volume:
		volume := v1.PersistentVolume{}
		err = volume.Unmarshal(data)
		object = volume.ObjectMeta
	case apiobject.ConfigMap, apiobject.Secret, apiobject.Claim, apiobject.Class, apiobject.Driver:
		var decoded *apiobject.Object
		if decoded, err = apiobject.Unmarshal(key.Kind, data); err == nil {
			object = *decoded.Meta()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return object.ResourceVersion
}
