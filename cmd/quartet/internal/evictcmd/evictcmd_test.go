package evictcmd

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a syncloop with one pod, which records evictions.
type engine struct {
	enginev1.UnimplementedEngineServiceServer

	evicted []*enginev1.EvictPodRequest
	fails   error
}

func (e *engine) ListPods(context.Context, *enginev1.ListPodsRequest) (*enginev1.ListPodsResponse, error) {
	pod := v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-node-1", UID: "uid-1"},
		Spec:       v1.PodSpec{NodeName: "node-1"},
	}
	data, err := pod.Marshal()
	return &enginev1.ListPodsResponse{Pods: []*enginev1.Pod{{Pod: data}}}, err
}

func (e *engine) EvictPod(_ context.Context, req *enginev1.EvictPodRequest) (*enginev1.EvictPodResponse, error) {
	if e.fails != nil {
		return nil, e.fails
	}
	e.evicted = append(e.evicted, req)
	return &enginev1.EvictPodResponse{}, nil
}

// serve serves an engine in a new state directory.
func serve(t *testing.T, e *engine) {
	t.Helper()
	stateDir := harness.ShortDir(t)
	t.Setenv("QUARTET_STATE_DIR", stateDir)
	l, err := layout.New(stateDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(l.Socket(layout.SyncLoop)), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: l.Address(layout.SyncLoop), Health: rpc.NewHealth(), Logger: slog.New(slog.DiscardHandler),
			Register: func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, e) }, Ready: func() { close(ready) },
		})
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// evict runs the command.
func evict(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestAPodIsEvictedByItsName(t *testing.T) {
	e := &engine{}
	serve(t, e)
	for _, args := range [][]string{
		{"shop/web"}, {"web-node-1", "-n", "shop"}, {"uid-1"},
		{"shop/web", "--reason", "DiskReplaced", "--message", "A new disk.", "--grace-period", "5"},
	} {
		out, err := evict(t, args...)
		if err != nil || !strings.HasPrefix(out, "pod/web-node-1 is being evicted") {
			t.Errorf("%q: %q, %v", args, out, err)
		}
	}
	usual := &enginev1.EvictPodRequest{
		PodUid: "uid-1", Reason: "Evicted", Message: "The pod was evicted by an administrator of the node.",
		GracePeriodSeconds: -1,
	}
	want := []*enginev1.EvictPodRequest{usual, usual, usual, {
		PodUid: "uid-1", Reason: "DiskReplaced", Message: "A new disk.", GracePeriodSeconds: 5,
	}}
	if len(e.evicted) != len(want) {
		t.Fatalf("%d evictions, want %d", len(e.evicted), len(want))
	}
	for i := range want {
		if !proto.Equal(e.evicted[i], want[i]) {
			t.Errorf("eviction %d is %v, want %v", i, e.evicted[i], want[i])
		}
	}
}

func TestAnEvictionThatCannotBeSaysWhy(t *testing.T) {
	e := &engine{fails: status.Error(codes.Unavailable, "the pods are not known yet")}
	serve(t, e)
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "name one pod"},
		{[]string{"shop/web", "other"}, "name one pod"},
		{[]string{"shop/api"}, `there is no pod "shop/api"`},
		{[]string{"shop/web", "--reason", "two words"}, `--reason: "two words" must be one word`},
		{[]string{"shop/web", "--reason", ""}, `--reason: "" must be one word`},
		{[]string{"shop/web", "--grace-period", "-2"}, "--grace-period: -2 must be -1 or more"},
		{[]string{"shop/web"}, "syncloop: the pods are not known yet"},
	} {
		if _, err := evict(t, test.args...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q fails with %v, want %q", test.args, err, test.want)
		}
	}
	if len(e.evicted) > 0 {
		t.Errorf("evicted %v", e.evicted)
	}
}
