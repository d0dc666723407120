// Package startup measures the time from the machine's boot until a new node is ready in its cluster, under the
// kubelet's metric names.
package startup

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Tracker records the first time of each step. It measures nothing for a Node that existed before. Create it with New.
type Tracker struct {
	// now returns the time since the boot.
	now func() time.Duration

	mu                                    sync.Mutex
	began, attempted, created, ready      time.Duration
	before, unregistered, registering     prometheus.Gauge
	afterRegistration, fromBootUntilReady prometheus.Gauge
}

// New registers the metrics and records the start of the process. now returns the time since the machine's boot.
func New(registry prometheus.Registerer, now func() time.Duration) *Tracker {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		registry.MustRegister(g)
		return g
	}
	return &Tracker{
		now:   now,
		began: now(),
		before: gauge(
			"kubelet_node_startup_pre_kubelet_duration_seconds",
			"From the machine's boot to the start of this process; 0 unless it created the Node.",
		),
		unregistered: gauge(
			"kubelet_node_startup_pre_registration_duration_seconds",
			"From the start of this process until it first tried to create the Node; 0 unless it created it.",
		),
		registering: gauge(
			"kubelet_node_startup_registration_duration_seconds",
			"From then until the API server had the Node; 0 unless this process created it.",
		),
		afterRegistration: gauge(
			"kubelet_node_startup_post_registration_duration_seconds",
			"From then until the Node was ready in the API server; 0 unless this process created it.",
		),
		fromBootUntilReady: gauge(
			"kubelet_node_startup_duration_seconds",
			"From the machine's boot until the Node was ready in the API server; 0 unless this process created it.",
		),
	}
}

// Attempted records that the Node is about to be created in the API server.
func (t *Tracker) Attempted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.attempted == 0 {
		t.attempted = t.now()
	}
}

// Created records that the Node was created.
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

// Ready records that the Node is ready in the API server.
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
