package nodestatus

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/cluster"
)

// shared is the API server of the tests that need one.
var shared = cluster.Shared{Options: []cluster.Option{cluster.Flags("--feature-gates=CSIVolumeHealth=true")}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

type wellPLEG struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
}

func (wellPLEG) GetHealth(context.Context, *lifecyclev1.GetHealthRequest) (*lifecyclev1.GetHealthResponse, error) {
	return &lifecyclev1.GetHealthResponse{
		Healthy:      true,
		LastRelistAt: timestamppb.Now(),
		Runtime:      &lifecyclev1.Runtime{Name: "containerd", Version: "2.4.2", Ready: true, NetworkReady: true},
	}, nil
}

type wellSyncLoop struct {
	enginev1.UnimplementedEngineServiceServer
}

func (wellSyncLoop) GetHealth(context.Context, *enginev1.GetHealthRequest) (*enginev1.GetHealthResponse, error) {
	return &enginev1.GetHealthResponse{Healthy: true, LastTurnAt: timestamppb.Now()}, nil
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func config(t *testing.T, flags ...string) nodeconfig.Config {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{"--state-dir", dir, "--hostname-override", "node-1"}, flags...)
	for _, service := range nodeconfig.Services() {
		args = append(args, "--"+string(service)+"-address", "unix://"+filepath.Join(dir, string(service)+".sock"))
	}
	cfg, err := nodeconfig.Parse(nodeconfig.NodeStatus, args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	*cfg.Kubelet.HealthzPort = 0
	return cfg
}

// background runs a function until stop is called, which returns its error.
func background(t *testing.T, do func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

func servePeers(t *testing.T, cfg nodeconfig.Config) {
	t.Helper()
	servePLEG(t, cfg)
	serveSyncLoop(t, cfg)
}

func servePLEG(t *testing.T, cfg nodeconfig.Config) (stop func() error) {
	t.Helper()
	return servePeer(t, cfg.Peers.PLEG, func(s *grpc.Server) { lifecyclev1.RegisterLifecycleServiceServer(s, wellPLEG{}) })
}

func serveSyncLoop(t *testing.T, cfg nodeconfig.Config) (stop func() error) {
	t.Helper()
	return servePeer(
		t,
		cfg.Peers.SyncLoop,
		func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, wellSyncLoop{}) },
	)
}

func servePeer(t *testing.T, address string, register func(*grpc.Server)) (stop func() error) {
	t.Helper()
	return background(t, func(ctx context.Context) error {
		return rpc.Serve(ctx, rpc.Config{Address: address, Register: register, Health: rpc.NewHealth(), Logger: quiet})
	})
}

func client(t *testing.T, cfg nodeconfig.Config) nodev1.NodeServiceClient {
	t.Helper()
	conn, err := rpc.Dial(cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return nodev1.NewNodeServiceClient(conn)
}

// follow sends every Node that is published until the test ends. Like every subscriber, it keeps the last one while a
// process starts.
func follow(t *testing.T, c nodev1.NodeServiceClient) <-chan *nodev1.Node {
	nodes := make(chan *nodev1.Node, 100)
	source := streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*nodev1.Node], error) {
		watch, err := c.WatchNode(ctx, &nodev1.WatchNodeRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *nodev1.Node, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetNode(), err
		}, nil
	})
	background(t, func(ctx context.Context) error {
		err := stream.Follow(ctx, stream.FollowConfig[*nodev1.Node]{
			Source: source, Logger: quiet,
			Handle: func(change stream.Change[*nodev1.Node]) {
				if change.Key != "node-1" {
					t.Errorf("a Node has the key %q, want %q", change.Key, "node-1")
				}
				if change.Op != stream.OpRemove { // the stream of a process that has just started has no Node yet
					nodes <- change.New
				}
			},
		})
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	return nodes
}

func waitReady(t *testing.T, nodes <-chan *nodev1.Node, want v1.ConditionStatus) *v1.Node {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		select {
		case published := <-nodes:
			var node v1.Node
			if err := node.Unmarshal(published.GetNode()); err != nil {
				t.Fatal(err)
			}
			if !published.GetStandalone() || !published.GetSynced() {
				t.Errorf("standalone %t, synced %t, want both", published.GetStandalone(), published.GetSynced())
			}
			for _, c := range node.Status.Conditions {
				if c.Type == v1.NodeReady && c.Status == want {
					return &node
				}
			}
		case <-deadline:
			t.Fatalf("no Node with Ready=%s", want)
		}
	}
}

func TestNodeIsServedAndBecomesReadyWithItsPeers(t *testing.T) {
	cfg := config(t)
	nodes := follow(t, client(t, cfg))
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	node := waitReady(t, nodes, v1.ConditionFalse)
	if node.Name != "node-1" || node.Status.Capacity.Cpu().IsZero() || node.Status.Capacity.Memory().IsZero() {
		t.Errorf("the Node is %+v", node)
	}
	health, err := client(t, cfg).GetHealth(t.Context(), &nodev1.GetHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if !health.GetHealthy() || len(health.GetReasons()) != 2 {
		t.Errorf("with its peers away nodestatus is %v, want healthy with a reason for each", health)
	}
	servePeers(t, cfg)
	node = waitReady(t, nodes, v1.ConditionTrue)
	if got := node.Status.NodeInfo.ContainerRuntimeVersion; got != "containerd://2.4.2" {
		t.Errorf("runtime = %q, want %q", got, "containerd://2.4.2")
	}
	if !strings.HasPrefix(node.Status.NodeInfo.KubeletVersion, "v1.") {
		t.Errorf("version = %q, want that of Kubernetes", node.Status.NodeInfo.KubeletVersion)
	}
	got, err := client(t, cfg).GetNode(t.Context(), &nodev1.GetNodeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetNode().GetNode()) == 0 {
		t.Error("GetNode returns nothing")
	}
}

func TestRestartKeepsTheNode(t *testing.T) {
	cfg := config(t)
	servePeers(t, cfg)
	nodes := follow(t, client(t, cfg))
	stop := background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	before := waitReady(t, nodes, v1.ConditionTrue)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for len(nodes) > 0 {
		<-nodes
	}
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	after := waitReady(t, nodes, v1.ConditionTrue)
	if !after.CreationTimestamp.Equal(&before.CreationTimestamp) {
		t.Errorf("created at %s, and after a restart at %s", before.CreationTimestamp, after.CreationTimestamp)
	}
	if a, b := after.Status.Conditions[3].LastTransitionTime, before.Status.Conditions[3].LastTransitionTime; !a.Equal(
		&b,
	) {
		t.Errorf("ready since %s, and after a restart since %s", b, a)
	}
}

func TestSecondOneOnAStateDirIsRefused(t *testing.T) {
	cfg := config(t)
	held, err := statedir.Lock(cfg.StateDir, string(nodeconfig.NodeStatus))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	}()
	err = run(t.Context(), cfg, quiet, telemetry.Off())
	var other *statedir.HeldError
	if !errors.As(err, &other) || other.Holder.PID != os.Getpid() ||
		!strings.Contains(err.Error(), "stop that process, or use another --state-dir") {
		t.Errorf("got %v, want a HeldError that names this process and says what to do", err)
	}
}
