package probecalls_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// serveGRPC serves until the end of the test.
func serveGRPC(t testing.TB, register func(*grpc.Server), options ...grpc.ServerOption) net.Addr {
	t.Helper()
	listener := listen(t, "127.0.0.1:0")
	server := grpc.NewServer(options...)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr()
}

func grpcTarget(t *testing.T, address net.Addr, service *string) probecalls.Target {
	t.Helper()
	_, port := split(t, address)
	return target(t, address, v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: port, Service: service}})
}

func TestAHealthServiceIsAskedForTheService(t *testing.T) {
	server := health.NewServer()
	server.SetServingStatus("well", healthv1.HealthCheckResponse_SERVING)
	server.SetServingStatus("ill", healthv1.HealthCheckResponse_NOT_SERVING)
	address := serveGRPC(t, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, server) })
	for service, w := range map[string]want{
		"well":    {outcome: probecalls.Success, output: "service healthy"},
		"":        {outcome: probecalls.Success, output: "service healthy"},
		"ill":     {outcome: probecalls.Failure, output: `service unhealthy (responded with "NOT_SERVING")`},
		"unknown": {outcome: probecalls.Failure, output: `error: this server does not know the health of the service "unknown" (NOT_FOUND): unknown service`},
	} {
		t.Run(service, func(t *testing.T) {
			w.check(t, newRig(t).Probe(t.Context(), grpcTarget(t, address, &service)))
		})
	}
	want{outcome: probecalls.Success, output: "service healthy"}.check(t, newRig(t).Probe(t.Context(), grpcTarget(t, address, nil)))
}

func TestAServerWithoutAHealthServiceIsReported(t *testing.T) {
	address := serveGRPC(t, func(*grpc.Server) {})
	want{
		outcome: probecalls.Failure,
		output:  "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service grpc.health.v1.Health",
	}.check(t, newRig(t).Probe(t.Context(), grpcTarget(t, address, nil)))
}

func TestAHealthServiceSeesTheUserAgent(t *testing.T) {
	var agent []string
	intercept := func(
		ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
	) (any, error) {
		agent = metadata.ValueFromIncomingContext(ctx, "user-agent")
		return handler(ctx, request)
	}
	address := serveGRPC(t, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, health.NewServer()) },
		grpc.UnaryInterceptor(intercept))
	newRig(t).Probe(t.Context(), grpcTarget(t, address, nil))
	if want := "kube-probe/1.37 grpc-go/" + grpc.Version; len(agent) != 1 || agent[0] != want {
		t.Errorf("the user agent is %q, want %q", agent, want)
	}
}

func TestAHealthServiceThatIsLateHasFailed(t *testing.T) {
	t.Parallel()
	silent := listen(t, "127.0.0.1:0") // accepts connections and sends nothing
	hanging := serveGRPC(t, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, health.NewServer()) },
		grpc.UnaryInterceptor(func(ctx context.Context, _ any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
	refusing := unusedAddress(t)
	for name, c := range map[string]struct {
		address net.Addr
		output  string
	}{
		"silent":  {silent.Addr(), fmt.Sprintf(`timeout: failed to connect service "%s" within 5s: context deadline exceeded`, silent.Addr())},
		"refused": {refusing, fmt.Sprintf(`timeout: failed to connect service "%s" within 5s: context deadline exceeded`, refusing)},
		"hanging": {hanging, "timeout: health rpc did not complete within 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := grpcTarget(t, c.address, nil)
			to.Probe.TimeoutSeconds = 5 // long enough to connect to a server
			began := time.Now()
			want{outcome: probecalls.Failure, output: c.output}.check(t, newRig(t).Probe(t.Context(), to))
			soon(t, began)
		})
	}
}
