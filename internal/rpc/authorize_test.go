package rpc_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/require"
)

// callsAt is the variable that makes a process of this test a client of an address, which calls every method.
const callsAt = "RPC_TEST_CALLS_AT"

// services are the contracts of the four processes.
var services = []grpc.ServiceDesc{
	configv1.ConfigService_ServiceDesc, lifecyclev1.LifecycleService_ServiceDesc,
	enginev1.EngineService_ServiceDesc, nodev1.NodeService_ServiceDesc, debugv1.DebugService_ServiceDesc,
}

// TestAUserMayCallWhatItsRolesNeedAndNothingElse calls every method of the four processes as the user of each role.
func TestAUserMayCallWhatItsRolesNeedAndNothingElse(t *testing.T) {
	if address := os.Getenv(callsAt); address != "" {
		callEverything(t, address)
		return
	}
	require.Root(t, "becoming another user")
	dir := openDir(t)
	binary := copyOfThisBinary(t, dir)
	path := filepath.Join(dir, "s.sock")
	users, uids := rights.Users{}, map[rights.Role]int{}
	for i, role := range rights.Roles() {
		uids[role] = 20001 + i
		users[role] = []int{uids[role]}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: "unix://" + path, Health: rpc.NewHealth(), Users: users, Ready: func() { close(ready) },
			Register: registerAll,
		})
	}()
	<-ready
	must(t, os.Chmod(path, 0o666))
	for role, uid := range uids {
		out, err := callAs(binary, uid, "unix://"+path)
		if err != nil {
			t.Fatalf("user %d: %v\n%s", uid, err, out)
		}
		allowed := func(method string) bool {
			return rights.Needed(method) == rights.Observe || rights.Needed(method) == role
		}
		calls := 0
		for line := range strings.Lines(out) {
			method, code, isCall := strings.Cut(strings.TrimSpace(line), " = ")
			if !isCall {
				continue
			}
			calls++
			want := codes.PermissionDenied.String()
			if allowed(method) {
				want = codes.Unimplemented.String()
			}
			if code != want {
				t.Errorf("role %s: %s ends with %s, want %s", role, method, code, want)
			}
		}
		if calls < 30 || !strings.Contains(out, "health: SERVING") {
			t.Errorf("role %s: %d calls, and %s", role, calls, out)
		}
	}
	// One who has no role is not even let in.
	if out, err := callAs(binary, 20099, "unix://"+path); err == nil {
		t.Errorf("a stranger was let in: %s", out)
	}
	cancel()
	must(t, <-done)
}

func registerAll(s *grpc.Server) {
	configv1.RegisterConfigServiceServer(s, configv1.UnimplementedConfigServiceServer{})
	lifecyclev1.RegisterLifecycleServiceServer(s, lifecyclev1.UnimplementedLifecycleServiceServer{})
	enginev1.RegisterEngineServiceServer(s, enginev1.UnimplementedEngineServiceServer{})
	nodev1.RegisterNodeServiceServer(s, nodev1.UnimplementedNodeServiceServer{})
	debugv1.RegisterDebugServiceServer(s, debugv1.UnimplementedDebugServiceServer{})
}

// callAs runs callEverything as another user.
func callAs(binary string, uid int, address string) (string, error) {
	child := exec.Command(binary, "-test.run=^TestAUserMayCallWhatItsRolesNeedAndNothingElse$", "-test.v")
	child.Env = append(os.Environ(), callsAt+"="+address)
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	out, err := child.CombinedOutput()
	return string(out), err
}

// callEverything is the child: it prints the code of a call of each method.
func callEverything(t *testing.T, address string) {
	conn, err := rpc.Dial(address)
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	must(t, err)
	fmt.Println("\nhealth:", health.GetStatus())
	eachCall(t, conn, func(method string, err error) { fmt.Printf("%s = %v\n", method, status.Code(err)) })
}

// eachCall calls every method of the four processes.
func eachCall(t *testing.T, conn *grpc.ClientConn, ended func(method string, err error)) {
	t.Helper()
	for _, service := range services {
		for _, method := range service.Methods {
			name := "/" + service.ServiceName + "/" + method.MethodName
			ended(name, conn.Invoke(t.Context(), name, &emptypb.Empty{}, &emptypb.Empty{}))
		}
		for i := range service.Streams {
			name := "/" + service.ServiceName + "/" + service.Streams[i].StreamName
			watch, err := conn.NewStream(t.Context(), &service.Streams[i], name)
			must(t, err)
			must(t, watch.SendMsg(&emptypb.Empty{}))
			must(t, watch.CloseSend())
			ended(name, watch.RecvMsg(&emptypb.Empty{}))
		}
	}
}
