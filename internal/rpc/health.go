package rpc

import (
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Health is the health of one process. The process itself is SERVING as soon as it listens: it needs no other to start.
// What it still waits for is a service name of its own in grpc.health.v1, NOT_SERVING until it has come, and a
// sentence for people.
type Health struct {
	server *health.Server

	mu      sync.Mutex
	waiting map[string]string
}

// NewHealth returns the health of a process that waits for nothing.
func NewHealth() *Health {
	return &Health{server: health.NewServer(), waiting: map[string]string{}}
}

// Set says that what (a peer's name, "runtime", a source) is missing and why; an empty reason says that it is there.
func (h *Health) Set(what, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if reason == "" {
		delete(h.waiting, what)
	} else {
		h.waiting[what] = reason
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	h.server.SetServingStatus(what, status)
}

// Waiting returns why each missing thing is missing, a sentence each, in the order of what they are.
func (h *Health) Waiting() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	reasons := make([]string, 0, len(h.waiting))
	for _, what := range slices.Sorted(maps.Keys(h.waiting)) {
		reasons = append(reasons, h.waiting[what])
	}
	return reasons
}
