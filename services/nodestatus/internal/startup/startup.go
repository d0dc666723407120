// Package startup measures how long it takes from the machine's boot until a new node is ready in its cluster, in the parts
// and under the names that a kubelet has.
package startup

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Tracker notes each step the first time that it is taken. Of a Node that was there before nothing is measured. Make it with New.
type Tracker struct {
	// now is the time since the boot.
	now func() time.Duration

	mu                                    sync.Mutex
	began, attempted, created, ready      time.Duration
	before, unregistered, registering     prometheus.Gauge
	afterRegistration, fromBootUntilReady prometheus.Gauge
}

// New registers the metrics and notes that the process begins. Now is the time since the machine's boot.
func New(registry prometheus.Registerer, now func() time.Duration) *Tracker {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		registry.MustRegister(g)
		return g
	}
	return &Tracker{
		now: now, began: now(),
		before:             gauge("kubelet_node_startup_pre_kubelet_duration_seconds", "From the machine's boot to the start of this process; 0 unless it made the Node."),
		unregistered:       gauge("kubelet_node_startup_pre_registration_duration_seconds", "From the start of this process until it first tried to make the Node; 0 unless it made it."),
		registering:        gauge("kubelet_node_startup_registration_duration_seconds", "From then until the API server had the Node; 0 unless this process made it."),
		afterRegistration:  gauge("kubelet_node_startup_post_registration_duration_seconds", "From then until the API server had the Node as ready; 0 unless this process made it."),
		fromBootUntilReady: gauge("kubelet_node_startup_duration_seconds", "From the machine's boot until the API server had the Node as ready; 0 unless this process made it."),
	}
}

// Attempted notes that the Node is about to be made in the API server.
func (t *Tracker) Attempted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attempted == 0 {
		t.attempted = t.now()
	}
}

// Created notes that it was.
func (t *Tracker) Created() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attempted == 0 || t.created != 0 {
		return
	}
	t.created = t.now()
	t.before.Set(t.began.Seconds())
	t.unregistered.Set((t.attempted - t.began).Seconds())
	t.registering.Set((t.created - t.attempted).Seconds())
}

// Ready notes that the API server has the Node as ready.
func (t *Tracker) Ready() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.created == 0 || t.ready != 0 {
		return
	}
	t.ready = t.now()
	t.afterRegistration.Set((t.ready - t.created).Seconds())
	t.fromBootUntilReady.Set(t.ready.Seconds())
}
