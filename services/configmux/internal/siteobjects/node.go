package siteobjects

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podobjects"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Node is the stream of one node.
type Node struct {
	all   *Objects
	level *stream.Level[mux.ObjectEntry]

	// The following fields are guarded by the lock of all.

	// pods has the objects that each pod names.
	pods map[types.UID][]apiobject.Key
	// uses are the objects that the node uses: those that its pods name, and those that they lead to.
	uses map[apiobject.Key]*use
	// wanted is true once somebody has followed the stream: a node whose syncloop has its objects from the API server
	// costs no watch.
	wanted bool
	// listed is true after the first full list of the pods, and ready is what was announced.
	listed, ready bool
}

// use is an object that a node uses.
type use struct {
	// visible is true if the node may have it. The node uses another one for what is in it, or does not know yet whether
	// it may have it.
	visible bool
	// sent is what is in the stream; nil if nothing is.
	sent *configv1.Object
}

// NewNode returns a node that uses no objects.
func (o *Objects) NewNode() *Node {
	n := &Node{
		all:  o,
		pods: map[types.UID][]apiobject.Key{}, uses: map[apiobject.Key]*use{},
		level: stream.NewLevel[mux.ObjectEntry](stream.Config{Clock: o.cfg.Clock, Metrics: o.cfg.Served}),
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.nodes[n] = true
	n.put()
	return n
}

// want begins to use the objects that the node's pods name.
func (n *Node) want() {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	if n.wanted {
		return
	}
	n.wanted = true
	n.update()
}

// Use takes a reading of the node's pods. It is called before the pods are published.
func (n *Node) Use(reading source.Reading) {
	if reading.Failed {
		return
	}
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	given := make(map[types.UID]bool, len(reading.Pods))
	for _, pod := range reading.Pods {
		given[pod.UID] = true
		if reading.Op == podset.Remove {
			n.set(pod.UID, nil)
		} else {
			n.set(pod.UID, keysOf(pod))
		}
	}
	if reading.Op == podset.None || reading.Op == podset.Restore {
		for uid := range n.pods {
			if !given[uid] {
				n.set(uid, nil)
			}
		}
	}
	n.listed = n.listed || reading.Op == podset.None
	n.update()
}

// keysOf returns the objects that a pod names.
func keysOf(pod source.Pod) []apiobject.Key {
	var keys []apiobject.Key
	refs := slices.Concat(
		podobjects.Used(pod.Pod), podobjects.UsedByVolumes(pod.Pod), podobjects.UsedServices(pod.Pod),
	)
	for _, ref := range refs {
		keys = append(keys, apiobject.Key{Kind: apiobject.Kind(ref.Kind), Namespace: ref.Namespace, Name: ref.Name})
	}
	return keys
}

// set sets the objects of a pod. The caller holds the lock, and calls update afterwards.
func (n *Node) set(uid types.UID, keys []apiobject.Key) {
	if n.pods[uid] = keys; len(keys) == 0 {
		delete(n.pods, uid)
	}
}

// reach returns the objects that the pods name, and those that they lead to as far as it is known, with whether the
// node may have them. The caller holds the lock.
func (n *Node) reach() map[apiobject.Key]bool {
	named := map[apiobject.Key]bool{}
	for _, keys := range n.pods {
		for _, key := range keys {
			named[key] = true
		}
	}
	all := maps.Clone(named)
	for key := range named {
		if key == apiService && !all[apiServices] {
			all[apiServices] = false // it is watched for the service
		}
		claim := n.all.content(key)
		if claim == nil || claim.volume.Name == "" {
			continue
		}
		volume := n.all.content(claim.volume)
		// A claim may name the volume of another one, to which the node has no right.
		if volume == nil || volume.claim != key {
			if _, is := all[claim.volume]; !is {
				all[claim.volume] = false
			}
			continue
		}
		all[claim.volume] = true
		for _, secret := range volume.secrets {
			all[secret] = true
		}
	}
	return all
}

// update brings what the node uses up to date. Objects that are new are used before others are left. The caller holds
// the lock.
func (n *Node) update() {
	var next map[apiobject.Key]bool
	if n.wanted {
		next = n.reach()
	}
	for key, visible := range next {
		u := n.uses[key]
		if u == nil {
			u = &use{}
			n.uses[key] = u
			n.all.use(n, key)
		}
		u.visible = visible
		n.show(key)
	}
	for key := range n.uses {
		if _, stays := next[key]; !stays {
			n.uses[key].visible = false
			n.show(key)
			delete(n.uses, key)
			n.all.leave(n, key)
		}
	}
	if h := n.all.held[apiService]; h != nil && !h.confirmed {
		n.all.learnAPIService()
	}
	n.announce()
}

// show brings an object in the stream up to date. The caller holds the lock.
func (n *Node) show(key apiobject.Key) {
	u := n.uses[key]
	var now *configv1.Object
	if c := n.all.content(key); u.visible && c != nil {
		now = c.object
	}
	switch {
	case now == u.sent:
	case now == nil:
		n.level.DeleteWith(key.Path(), mux.ObjectEntry{Object: bare(key)})
	default:
		n.level.Put(key.Path(), mux.ObjectEntry{Object: now})
	}
	u.sent = now
}

// announce publishes whether all objects of the node are confirmed, if that has changed. The caller holds the lock.
func (n *Node) announce() {
	ready := n.listed && n.wanted
	for key := range n.uses {
		ready = ready && n.all.held[key].confirmed
	}
	if ready != n.ready {
		n.ready = ready
		n.put()
	}
}

func (n *Node) put() {
	state := &configv1.SourceState{Name: apisource.Name, Ready: n.ready}
	n.level.Put(mux.SourceKey(apisource.Name), mux.ObjectEntry{Source: state})
}

// Close ends the streams of the node, and leaves its objects.
func (n *Node) Close() {
	n.level.Close()
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	clear(n.pods)
	n.update()
	delete(n.all.nodes, n)
}

// End ends the streams of the node, and its objects stay in the checkpoint.
func (n *Node) End() { n.level.Close() }

// Subscribers returns the number of open streams.
func (n *Node) Subscribers() int { return n.level.Subscribers() }

// ObjectStream returns the stream of the objects of a selection. The first call begins to request them.
func (n *Node) ObjectStream(selection mux.Selection) stream.Source[mux.ObjectEntry] {
	n.want()
	return mux.Selected(n.level, n.all.cfg.Clock, selection)
}

// Counts returns the number of objects of each kind.
func (n *Node) Counts() map[apiobject.Kind]int {
	counts := map[apiobject.Kind]int{}
	for _, o := range n.objects() {
		counts[apiobject.Kind(o.GetKind())]++
	}
	return counts
}

// Objects returns summaries of the objects of a kind, or of all kinds if it is empty, sorted. They have no value of a
// secret. Persistent volumes and services have no summaries.
func (n *Node) Objects(kind apiobject.Kind) []*configv1.ObjectSummary {
	var all []*configv1.ObjectSummary
	for _, o := range n.objects() {
		if kind != "" && string(kind) != o.GetKind() {
			continue
		}
		decoded, err := apiobject.Unmarshal(apiobject.Kind(o.GetKind()), o.GetObject())
		if err != nil {
			continue // it is of a kind without a summary: what was encoded here can be decoded
		}
		all = append(all, summary(o, decoded))
	}
	slices.SortFunc(all, func(a, b *configv1.ObjectSummary) int {
		return cmp.Or(cmp.Compare(a.GetKind(), b.GetKind()), cmp.Compare(a.GetNamespace(), b.GetNamespace()),
			cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}

// objects returns the objects of the node that there are.
func (n *Node) objects() []*configv1.Object {
	var all []*configv1.Object
	for _, entry := range n.level.List() {
		if entry.Object != nil && !entry.Object.GetMissing() {
			all = append(all, entry.Object)
		}
	}
	return all
}

func summary(o *configv1.Object, decoded *apiobject.Object) *configv1.ObjectSummary {
	s := &configv1.ObjectSummary{
		Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName(), Immutable: decoded.Immutable(),
		Source: o.GetSource(), Path: decoded.Key().Path(),
	}
	switch {
	case decoded.Secret != nil:
		s.Type = string(decoded.Secret.Type)
	case decoded.Claim != nil:
		s.PersistentVolumeClaim = o.GetObject()
	default:
		s.ConfigMap = o.GetObject()
	}
	sizes := decoded.Sizes()
	for _, name := range decoded.Keys() {
		s.Keys = append(s.Keys, &configv1.ObjectKey{Name: name, Bytes: int64(sizes[name])})
	}
	return s
}
