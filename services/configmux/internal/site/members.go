package site

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/quartet-node/quartet/internal/reflector"
)

// followMembers keeps the nodes those with the labels of the selector, until ctx ends. Until the first list, the nodes
// are those with a checkpoint.
func (s *Site) followMembers(ctx context.Context) {
	_ = reflector.Run(ctx, reflector.Config{ // it ends only with ctx
		Client:     s.cfg.Client,
		Resource:   "nodes",
		Labels:     s.cfg.Nodes.Selector,
		Empty:      &v1.Node{},
		Handler:    members{s},
		Clock:      s.cfg.Clock,
		Timeout:    listTimeout,
		MaxBackoff: maxBackoff,
		Requested:  func(verb reflector.Verb, _ time.Time, err error) { s.uplink.report("nodes", verb, err) },
	})
}

// members implements reflector.Handler for the nodes of a selector.
type members struct{ s *Site }

// Listed implements reflector.Handler.
func (m members) Listed(objects []runtime.Object, _ time.Time) {
	listed := map[string]bool{}
	for _, object := range objects {
		listed[m.add(object)] = true
	}
	for _, n := range m.s.all() {
		if !listed[n.name] {
			m.s.remove(n.name)
		}
	}
	m.s.mu.Lock()
	m.s.membersKnown = true
	m.s.mu.Unlock()
	m.s.health.complete()
}

// Changed implements reflector.Handler.
func (m members) Changed(object runtime.Object) { m.add(object) }

// Deleted implements reflector.Handler. A node that has lost a label is deleted for the selector.
func (m members) Deleted(object runtime.Object) {
	if node, is := object.(*v1.Node); is {
		m.s.remove(node.Name)
	}
}

// ListFailed implements reflector.Handler. The uplink has reported the failure.
func (members) ListFailed(error) {}

// add adds the node of an object, and returns its name.
func (m members) add(object runtime.Object) string {
	node, is := object.(*v1.Node)
	if !is || len(validation.IsDNS1123Subdomain(node.Name)) > 0 {
		return ""
	}
	m.s.ensure(node.Name)
	return node.Name
}
