package rpc

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Loops is the service name in grpc.health.v1 of the loops of a process. It is NOT_SERVING while one of them stands
// still. It is not a dependency: only a restart helps.
const Loops = "loops"

// Health is the health of one process. The process itself is SERVING as soon as it listens, because it needs no other
// process to start. Each missing dependency has its own service name in grpc.health.v1, which is NOT_SERVING until the
// dependency is available, and a sentence for people.
type Health struct {
	server *health.Server
	served atomic.Bool

	mu      sync.Mutex
	waiting map[string]string
}

// NewHealth returns the health of a process without missing dependencies.
func NewHealth() *Health {
	h := &Health{server: health.NewServer(), waiting: map[string]string{}}
	h.SetStuck(nil)
	return h
}

// Served reports whether a server has had this health: Serve has listened.
func (h *Health) Served() bool { return h.served.Load() }

// SetStuck records which loops of the process stand still.
func (h *Health) SetStuck(loops []string) {
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if len(loops) > 0 {
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	h.server.SetServingStatus(Loops, status)
}

// Set records that a dependency (a peer's name, "runtime", a source) is missing, with the reason. An empty reason means
// that it is available.
func (h *Health) Set(part, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	status := grpc_health_v1.HealthCheckResponse_SERVING
	if reason == "" {
		delete(h.waiting, part)
	} else {
		h.waiting[part] = reason
		status = grpc_health_v1.HealthCheckResponse_NOT_SERVING
	}
	h.server.SetServingStatus(part, status)
}

// Waiting returns the reasons of all missing dependencies, one sentence each, sorted by dependency.
func (h *Health) Waiting() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	reasons := make([]string, 0, len(h.waiting))
	for _, part := range slices.Sorted(maps.Keys(h.waiting)) {
		reasons = append(reasons, h.waiting[part])
	}
	return reasons
}
