package probecalls_test

import (
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// BenchmarkCall measures one successful call of each kind of probe. The server runs in the same process.
func BenchmarkCall(b *testing.B) {
	server := answering(b, http.StatusOK)
	healthy := serveGRPC(b, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, health.NewServer()) })
	_, port := split(b, healthy)
	e := newExecRig(b)
	command := e.command(b, "check")
	for _, c := range []struct {
		name string
		to   probecalls.Target
	}{
		{"tcp", target(b, server.Listener.Addr(), v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}})},
		{"http", httpTarget(b, server)},
		{"grpc", target(b, healthy, v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port}})},
		{"exec", command},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := e.Probe(b.Context(), c.to); got.Outcome != probecalls.Success {
					b.Fatalf("Probe() = %+v, want Outcome %v", got, probecalls.Success)
				}
			}
		})
	}
}
