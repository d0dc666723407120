// Package hostips provides the addresses of the node, for the status of pods, for pods on the host's network and for
// the downward API. They are from the Node that nodestatus sends. Until the first Node arrives, they are those that the
// previous process has stored, or else those of --node-ip or detected ones. If nodestatus stops, the last known
// addresses stay.
package hostips

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/net"
)

// retry is how often addresses are detected while none is known.
const retry = 2 * time.Second

// Of returns the addresses of a Node, the primary one first and at most one of each family. Internal addresses come
// before external ones.
func Of(node *v1.Node) []string {
	var all []string
	for _, kind := range []v1.NodeAddressType{v1.NodeInternalIP, v1.NodeExternalIP} {
		for _, address := range node.Status.Addresses {
			if address.Type == kind && net.ParseIPSloppy(address.Address) != nil {
				all = append(all, address.Address)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	primary := net.IPFamilyOfString(all[0])
	for _, other := range all[1:] {
		if net.IPFamilyOfString(other) != primary {
			return []string{all[0], other}
		}
	}
	return all[:1]
}

// Addresses are the current addresses of the node. Use New to create them.
type Addresses struct {
	guess func() []string
	mu    sync.Mutex
	known atomic.Pointer[addresses]
	// changed is called with new addresses, while the lock is held.
	changed func([]string)
}

// addresses are from the Node, or else detected.
type addresses struct {
	ips      []string
	fromNode bool
}

// New returns Addresses, of which none is known. guess reads the addresses of the machine; only Detect and Run call it.
func New(guess func() []string) *Addresses {
	a := &Addresses{guess: guess}
	a.known.Store(&addresses{})
	return a
}

// Detect reads the addresses of the machine, unless some are known: that may ask a name server, and lists the
// interfaces of all pods.
func (a *Addresses) Detect() {
	if len(a.Get()) > 0 {
		return
	}
	if ips := a.guess(); len(ips) > 0 {
		a.set(addresses{ips: ips})
	}
}

// Get returns the addresses, the primary one first; nil if none is known.
func (a *Addresses) Get() []string { return a.known.Load().ips }

// OnChange sets the function that is called with the addresses, at once and at each change. Call it once. report must
// not call methods of Addresses.
func (a *Addresses) OnChange(report func([]string)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = report
	report(a.Get())
}

// Learn sets the addresses from the Node, and returns those of the Node. A Node without addresses changes nothing.
func (a *Addresses) Learn(node *v1.Node) []string {
	ips := Of(node)
	a.Take(ips)
	return ips
}

// Take sets the addresses from the current or last Node. An empty list changes nothing.
func (a *Addresses) Take(ips []string) {
	if len(ips) > 0 {
		a.set(addresses{ips: ips, fromNode: true})
	}
}

func (a *Addresses) set(next addresses) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.known.Load()
	if before.fromNode && !next.fromNode {
		return
	}
	a.known.Store(&next)
	if a.changed != nil && !slices.Equal(before.ips, next.ips) {
		a.changed(next.ips)
	}
}

// Run detects addresses until one is known or ctx ends.
func (a *Addresses) Run(ctx context.Context, clk clock.WithTicker) error {
	ticker := clk.NewTicker(retry)
	defer ticker.Stop()
	for len(a.Get()) == 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
		a.Detect()
	}
	return nil
}
