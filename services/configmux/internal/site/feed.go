package site

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/quartet-node/quartet/internal/reflector"
)

const (
	// listTimeout bounds a list of the pods of all nodes, and the start of a watch. It is the API server's own limit.
	listTimeout = time.Minute
	// maxBackoff bounds the pause after a failed request, as for one node.
	maxBackoff = 3 * time.Second
	// nodeField is the field of a pod with the name of its node.
	nodeField = "spec.nodeName"
)

// feed lists and watches the pods of all nodes by one request, and passes each to the source of its node. It keeps no
// pod. It implements reflector.Handler.
type feed struct {
	site *Site

	// mu is held while pods are passed, so that a node that is added gets all of them once. The sources only compute.
	mu sync.Mutex
	// listed is true after the first list: since then a node without pods is known to have none.
	listed bool
}

func (f *feed) run(ctx context.Context) {
	s := f.site
	_ = reflector.Run(ctx, reflector.Config{ // it ends only with ctx
		Client:     s.cfg.Client,
		Resource:   "pods",
		Fields:     fields.OneTermNotEqualSelector(nodeField, ""),
		Empty:      &v1.Pod{},
		Handler:    f,
		Clock:      s.cfg.Clock,
		Timeout:    listTimeout,
		MaxBackoff: maxBackoff,
		Requested:  f.requested,
		Watching:   s.cfg.Requests.Watching,
	})
}

// requested passes the result of a request to all nodes, which show it as that of their own.
func (f *feed) requested(verb reflector.Verb, began time.Time, err error) {
	f.site.cfg.Requests.Requested(verb, err)
	f.site.uplink.requested(verb, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.site.all() {
		n.feed.Requested(verb, began, err)
	}
}

// Listed implements reflector.Handler.
func (f *feed) Listed(objects []runtime.Object, began time.Time) {
	byNode := map[string][]runtime.Object{}
	for _, object := range objects {
		if node := nodeOf(object); node != "" {
			byNode[node] = append(byNode[node], object)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for node := range byNode {
		f.site.ensure(node)
	}
	for _, n := range f.site.all() {
		n.feed.Listed(byNode[n.name], began)
	}
	f.listed = true
	f.site.health.complete()
}

// Changed implements reflector.Handler.
func (f *feed) Changed(object runtime.Object) {
	if node := nodeOf(object); node != "" {
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := f.ensure(node); n != nil {
			n.feed.Changed(object)
		}
	}
}

// Deleted implements reflector.Handler.
func (f *feed) Deleted(object runtime.Object) {
	if n := f.site.get(nodeOf(object)); n != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		n.feed.Deleted(object)
	}
}

// ListFailed implements reflector.Handler. requested has reported the failure.
func (*feed) ListFailed(error) {}

// connect returns the node of a syncloop that has connected; nil if the site has ended.
func (f *feed) connect(node string) *Node {
	if n := f.site.get(node); n != nil {
		return n
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ensure(node)
}

// ensure returns a node; nil if the site has ended. A new one has no pods so far, if they have been listed. The caller
// holds mu.
func (f *feed) ensure(node string) *Node {
	n, added := f.site.ensure(node)
	if n != nil && added && f.listed {
		n.feed.Listed(nil, f.site.cfg.Clock.Now())
	}
	return n
}

// dropIdle drops nodes without pods and subscribers.
func (f *feed) dropIdle() {
	for _, n := range f.detachIdle() {
		f.site.finish(n)
	}
}

func (f *feed) detachIdle() []*Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	var idle []*Node
	for _, n := range f.site.all() {
		if f.listed && n.idle() {
			idle = append(idle, f.site.detach(n.name))
		}
	}
	return idle
}

// nodeOf returns the node of a pod; empty if it is not a name that a Node can have.
func nodeOf(object runtime.Object) string {
	pod, is := object.(*v1.Pod)
	if !is || len(validation.IsDNS1123Subdomain(pod.Spec.NodeName)) > 0 {
		return ""
	}
	return pod.Spec.NodeName
}
