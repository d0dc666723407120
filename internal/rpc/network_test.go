package rpc_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/nameserver"
)

// serveNetwork serves pleg on a unix socket and on an address of the network.
func serveNetwork(t *testing.T, address string, files peertls.Files, names rights.Names) (stop func()) {
	t.Helper()
	return serveListen(t, peertls.Listen{Address: address, Files: files, Names: names})
}

func serveListen(t *testing.T, network peertls.Listen) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: "unix://" + filepath.Join(t.TempDir(), "pleg.sock"), Health: rpc.NewHealth(),
			Network:  network,
			Register: registerAll, Ready: func() { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			cancel()
			must(t, <-done)
		}
	}
	t.Cleanup(stop)
	return stop
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := freeport.Find()
	must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// dialPLEG returns a client of the pleg at an address.
func dialPLEG(t *testing.T, address string, files peertls.Files) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.DialService(layout.PLEG, address, files)
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	return conn
}

func healthOf(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

func TestANameMayCallWhatItsRolesNeedAndNothingElse(t *testing.T) {
	ca := authority.New(t, "ca")
	names := rights.Names{}
	for _, role := range rights.Roles() {
		names[role] = []string{string(role) + "-name"}
	}
	address := freeAddress(t)
	serveNetwork(t, address, ca.Issue(t, t.TempDir(), authority.Request{Hosts: []string{"127.0.0.1", "pleg"}}), names)
	for _, role := range rights.Roles() {
		// The role is that of a common name, or of another name.
		for _, request := range []authority.Request{
			{Name: string(role) + "-name"}, {Name: "laptop", Hosts: []string{string(role) + "-name"}},
		} {
			conn := dialPLEG(t, address, ca.Issue(t, t.TempDir(), request))
			must(t, healthOf(t.Context(), conn))
			eachCall(t, conn, func(method string, err error) {
				want := codes.PermissionDenied
				if needed := rights.Needed(method); needed == rights.Observe || needed == role {
					want = codes.Unimplemented
				}
				if status.Code(err) != want {
					t.Errorf("role %s: %s ends with %v, want %v", role, method, err, want)
				}
			})
		}
	}
	// A certificate of the authority is no role.
	conn := dialPLEG(t, address, ca.Issue(t, t.TempDir(), authority.Request{Name: "stranger"}))
	err := healthOf(t.Context(), conn)
	for _, want := range []string{"PermissionDenied", "the certificate of stranger", `role "observe"`, "--observe-names"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a stranger gets %v, want %q in it", err, want)
		}
	}
	eachCall(t, conn, func(method string, err error) {
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a stranger: %s ends with %v", method, err)
		}
	})
}

// TestANodeMayObserveWhereNodesAreLetIn, and nothing else; elsewhere its certificate is one without a role.
func TestANodeMayObserveWhereNodesAreLetIn(t *testing.T) {
	ca := authority.New(t, "ca")
	node := authority.Request{Name: "system:node:a", Groups: []string{"system:nodes"}}
	for _, letIn := range []bool{true, false} {
		address := freeAddress(t)
		files := ca.Issue(t, t.TempDir(), authority.Request{Hosts: []string{"127.0.0.1", "pleg"}})
		serveListen(t, peertls.Listen{
			Address: address, Files: files, Nodes: letIn, Names: rights.Names{rights.Observe: {"laptop"}},
		})
		conn := dialPLEG(t, address, ca.Issue(t, t.TempDir(), node))
		if err := healthOf(t.Context(), conn); (err == nil) != letIn {
			t.Errorf("nodes are let in: %t; the health of one ends with %v", letIn, err)
		}
		eachCall(t, conn, func(method string, err error) {
			want := codes.PermissionDenied
			if letIn && rights.Needed(method) == rights.Observe {
				want = codes.Unimplemented
			}
			if status.Code(err) != want {
				t.Errorf("nodes are let in: %t; %s of one ends with %v, want %v", letIn, method, err, want)
			}
		})
	}
}

// TestTheErrorOfAClientSaysWhatIsWrong, and calls do not wait until their deadline for it.
func TestTheErrorOfAClientSaysWhatIsWrong(t *testing.T) {
	ca, other := authority.New(t, "ca"), authority.New(t, "other")
	address := freeAddress(t)
	serveNetwork(t, address, ca.Issue(t, t.TempDir(), authority.Request{Hosts: []string{"127.0.0.1", "pleg"}}),
		rights.Names{rights.Observe: {"laptop"}})
	laptop := authority.Request{Name: "laptop"}
	stranger := other.Issue(t, t.TempDir(), laptop)
	authority.Trust(t, stranger.CA, ca)
	expired := laptop
	expired.For = -time.Minute
	for want, files := range map[string]peertls.Files{
		"unknown certificate authority":           stranger,
		"certificate signed by unknown authority": other.Issue(t, t.TempDir(), laptop),
		"remote error: tls: expired certificate":  ca.Issue(t, t.TempDir(), expired),
	} {
		err := healthOf(t.Context(), dialPLEG(t, address, files))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("the call ends with %v, want %q", err, want)
		}
	}
	conn, err := rpc.DialService(layout.ConfigMux, address, ca.Issue(t, t.TempDir(), laptop))
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	if err := healthOf(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "not for the service configmux") {
		t.Errorf("pleg is taken for configmux: %v", err)
	}
	plain, err := net.Dial("tcp", address)
	must(t, err)
	defer plain.Close() //nolint:errcheck // nothing was written
	_, err = plain.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	must(t, err)
	answer := make([]byte, 1)
	if _, err := plain.Read(answer); err == nil && answer[0] != 21 { // 21 is an alert of TLS
		t.Errorf("a client without TLS gets %d", answer[0])
	}
}

func TestNothingIsOnTheNetworkWithoutTLS(t *testing.T) {
	address := freeAddress(t)
	err := rpc.Serve(t.Context(), rpc.Config{
		Address: "unix://" + filepath.Join(t.TempDir(), "pleg.sock"), Health: rpc.NewHealth(), Register: registerAll,
		Network: peertls.Listen{Address: address, Files: peertls.Files{Cert: "/c", Key: "/k"}},
	})
	if err == nil || !strings.Contains(err.Error(), "--tls-listen") || !strings.Contains(err.Error(), "--tls-ca") {
		t.Errorf("Serve() = %v, want the flags", err)
	}
	if _, err := rpc.DialService(layout.PLEG, address, peertls.Files{}); err == nil ||
		!strings.Contains(err.Error(), "--pleg-address") || !strings.Contains(err.Error(), "--tls-cert") {
		t.Errorf("DialService() = %v, want the flags", err)
	}
}

// TestANameWithSeveralAddresses: a part that is gone is left for the next address of its name.
func TestANameWithSeveralAddresses(t *testing.T) {
	ca := authority.New(t, "ca")
	port, err := freeport.Find()
	must(t, err)
	server := ca.Issue(t, t.TempDir(), authority.Request{Hosts: []string{"pleg.test", "pleg"}})
	names := rights.Names{rights.Observe: {"laptop"}}
	stops := map[string]func(){}
	for _, ip := range []string{"127.0.0.2", "127.0.0.3"} {
		stops[ip] = serveNetwork(t, net.JoinHostPort(ip, fmt.Sprint(port)), server, names)
	}
	resolver := nameserver.Start(t, "pleg.test.", "127.0.0.2", "127.0.0.3")
	conn := dialPLEG(t, fmt.Sprintf("dns://%s/pleg.test:%d", resolver, port),
		ca.Issue(t, t.TempDir(), authority.Request{Name: "laptop"}))
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
	stops["127.0.0.2"]()
	eventually.That(t, "the stream of the part that is gone ends", func() bool {
		_, err := watch.Recv()
		return err != nil
	})
	watch, err = grpc_health_v1.NewHealthClient(conn).Watch(
		t.Context(), &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	must(t, err)
	_, err = watch.Recv()
	must(t, err)
}
