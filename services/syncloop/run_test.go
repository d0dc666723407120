package syncloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/sharedmount"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/freeport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testImage = "example.test/main:1"

// machine is a fake runtime with a fake configmux and a fake pleg. syncloop runs in the process of the test.
type machine struct {
	t         *testing.T
	cri       *fakecri.Server
	configmux *configmux
	cfg       nodeconfig.Config
	spans     *tracetest.SpanRecorder
	tel       *telemetry.Telemetry
	// serveConfigmux and servePLEG start the servers of the two, and stopConfigmux and stopPLEG stop them.
	serveConfigmux, servePLEG, stopConfigmux, stopPLEG func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, cri: fakecri.New(t), configmux: newConfigmux(), spans: tracetest.NewSpanRecorder()}
	m.cri.AddImage(testImage, 1)
	dir, err := os.MkdirTemp("", "syncloop") // The path of a socket must be short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The mount exists if the machine's mounts are private and a pod is left.
		if err := sharedmount.Undo(filepath.Join(dir, "root")); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(dir, "kubelet.yaml")
	text := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: %s\n"+
		"cgroupsPerQOS: false\nfailSwapOn: false\nmakeIPTablesUtilChains: false\nreadOnlyPort: %d\npodLogsDir: %s\nsyncFrequency: 1s\n", m.cri.Endpoint(), freePort(t), filepath.Join(dir, "logs"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--config=" + file, "--state-dir=" + dir, "--root-dir=" + filepath.Join(dir, "root"), "--node-ip=192.0.2.1",
		"--hostname-override=node", "--listen=unix://" + filepath.Join(dir, "syncloop.sock"),
		"--configmux-address=unix://" + filepath.Join(dir, "configmux.sock"), "--pleg-address=unix://" + filepath.Join(dir, "pleg.sock"),
		"--nodestatus-address=unix://" + filepath.Join(dir, "nodestatus.sock")} // not the socket of a real node
	if m.cfg, err = nodeconfig.Parse(nodeconfig.SyncLoop, args, io.Discard); err != nil {
		t.Fatal(err)
	}
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(m.spans)).Tracer("test")
	m.tel = &telemetry.Telemetry{Logger: slog.New(slog.DiscardHandler), Tracer: tracer}
	p := newPLEG(m.connect())
	m.serveConfigmux = func() {
		m.stopConfigmux = m.serve(m.cfg.Peers.ConfigMux, func(s *grpc.Server) {
			configv1.RegisterConfigServiceServer(s, m.configmux)
		})
	}
	m.servePLEG = func() {
		m.stopPLEG = m.serve(m.cfg.Peers.PLEG, func(s *grpc.Server) { lifecyclev1.RegisterLifecycleServiceServer(s, p) })
	}
	m.serveConfigmux()
	m.servePLEG()
	m.background(func(ctx context.Context) error { p.run(ctx); return nil })
	return m
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func (m *machine) connect() internalapi.RuntimeService {
	client, err := cri.New(cri.Config{Endpoint: m.cri.Endpoint(), Timeout: 10 * time.Second, Logger: m.tel.Logger})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := client.Close(); err != nil {
			m.t.Error(err)
		}
	})
	service, err := client.Runtime(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return service
}

// background runs a function until the test ends or stop is called.
func (m *machine) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	}
	m.t.Cleanup(stop)
	return stop
}

func (m *machine) serve(address string, register func(*grpc.Server)) (stop func()) {
	ready := make(chan struct{})
	stop = m.background(func(ctx context.Context) error {
		return rpc.Serve(ctx, rpc.Config{
			Address: address, Health: rpc.NewHealth(), Register: register, Ready: func() { close(ready) },
		})
	})
	<-ready
	return stop
}

// start runs syncloop as main does, until stop is called or the test ends.
func (m *machine) start() (stop func()) {
	return m.background(func(ctx context.Context) error { return run(ctx, m.cfg, m.tel) })
}

func (m *machine) put(pod *v1.Pod) {
	m.t.Helper()
	if err := m.configmux.put(pod, ""); err != nil {
		m.t.Fatal(err)
	}
}

// pods returns the pods from /pods, or nil if there is no answer.
func (m *machine) pods() []v1.Pod {
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/pods", m.cfg.Kubelet.ReadOnlyPort)) //nolint:noctx // the test has a deadline of its own
	if err != nil {
		return nil
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close() //nolint:errcheck // it has been read
	var list v1.PodList
	if json.NewDecoder(resp.Body).Decode(&list) != nil {
		return nil
	}
	return list.Items
}

func (m *machine) ready(uids ...types.UID) func() bool {
	return func() bool {
		var got []types.UID
		for _, pod := range m.pods() {
			for _, c := range pod.Status.Conditions {
				if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
					got = append(got, pod.UID)
				}
			}
		}
		slices.Sort(got)
		return slices.Equal(got, uids)
	}
}

func (m *machine) eventually(what string, holds func() bool) {
	m.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: not in time; pods: %v; containers: %v", what, m.pods(), m.containers())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// containers returns the IDs of the running containers.
func (m *machine) containers() []string {
	var ids []string
	for _, c := range m.cri.Containers() {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			ids = append(ids, c.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func newPod(uid types.UID, name string, containers ...string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: uid, Name: name, Namespace: "default"},
		Spec: v1.PodSpec{
			RestartPolicy: v1.RestartPolicyAlways, NodeName: "node", DNSPolicy: v1.DNSDefault,
			TerminationGracePeriodSeconds: ptr.To[int64](2), SecurityContext: &v1.PodSecurityContext{},
		},
	}
	for _, c := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{
			Name: c, Image: testImage, ImagePullPolicy: v1.PullIfNotPresent,
		})
	}
	return pod
}

func TestAPodIsRunReplacedAndRemoved(t *testing.T) {
	m := newMachine(t)
	m.put(newPod("u1", "web", "a", "b"))
	m.configmux.speak()
	m.start()
	m.eventually("web is ready", m.ready("u1"))
	if got := m.containers(); len(got) != 2 {
		t.Fatalf("running: %v, want 2 entries", got)
	}
	m.configmux.level.Delete("u1")
	m.put(newPod("u2", "web", "a"))
	m.eventually("the new one is ready", m.ready("u2"))
	m.eventually("nothing of the old one is left", func() bool { return len(m.cri.Containers()) == 1 && len(m.cri.Sandboxes()) == 1 })
	m.configmux.level.Delete("u2")
	m.eventually("nothing is left", func() bool { return len(m.cri.Containers()) == 0 && len(m.cri.Sandboxes()) == 0 && len(m.pods()) == 0 })
}

func TestARestartChangesNothingThatRuns(t *testing.T) {
	m := newMachine(t)
	var want []types.UID
	for i := range 10 {
		uid := types.UID(fmt.Sprintf("u%d", i))
		want = append(want, uid)
		m.put(newPod(uid, fmt.Sprintf("web-%d", i), "a"))
	}
	m.configmux.speak()
	stop := m.start()
	m.eventually("all are ready", m.ready(want...))
	before := m.containers()
	stop()
	if got := m.containers(); !slices.Equal(got, before) {
		t.Fatalf("the end of the process stopped containers: %v, want %v", got, before)
	}
	m.cri.ResetCalls()
	m.start()
	m.eventually("the pods are listed", func() bool { return len(m.pods()) > 0 })
	if !m.ready(want...)() {
		t.Errorf("a pod was not ready in the first answer: %v", m.pods())
	}
	m.put(newPod("v1", "later", "a")) // When this pod runs, the others have been synced.
	m.eventually("a later pod is ready", m.ready(append(want, "v1")...))
	if n := m.cri.Count("CreateContainer", ""); n != 1 || m.cri.Count("StopContainer", "") != 0 || m.cri.Count("RemoveContainer", "") != 0 {
		t.Errorf("the restart created %d containers; calls: %v, want 1, Count 0 and Count 0", n, m.cri.Calls())
	}
}

func TestACrashIsCountedAndBacksOff(t *testing.T) {
	m := newMachine(t)
	m.put(newPod("u1", "web", "a"))
	m.configmux.speak()
	m.start()
	m.eventually("web is ready", m.ready("u1"))
	crash := func() {
		m.eventually("web runs", func() bool { return len(m.containers()) == 1 })
		m.cri.Exit(m.containers()[0], 3)
	}
	crash()
	m.eventually("web runs again", func() bool {
		pods := m.pods()
		return len(pods) == 1 && pods[0].Status.ContainerStatuses[0].RestartCount == 1 && m.ready("u1")()
	})
	crash()
	m.eventually("web backs off", func() bool {
		pods := m.pods()
		if len(pods) != 1 {
			return false
		}
		s := pods[0].Status.ContainerStatuses[0]
		return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" && s.LastTerminationState.Terminated != nil &&
			s.LastTerminationState.Terminated.ExitCode == 3
	})
	m.eventually("one ended container is kept", func() bool { return len(m.cri.Containers()) == 1 })
}

func TestAFailureOfTheRuntimeShowsAndPasses(t *testing.T) {
	m := newMachine(t)
	undo := m.cri.Fail("RunPodSandbox", "", 1000, errors.New("no network for you"))
	m.put(newPod("u1", "web", "a"))
	m.configmux.speak()
	m.start()
	m.eventually("the failure shows", func() bool {
		pods := m.pods()
		return len(pods) == 1 && pods[0].Status.Phase == v1.PodPending &&
			strings.Contains(pods[0].Status.Message, "no network for you")
	})
	undo()
	m.eventually("web is ready", m.ready("u1"))
}

func TestOneTraceReachesTheRuntimeAndComesBack(t *testing.T) {
	m := newMachine(t)
	m.configmux.speak()
	m.start()
	const change = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if err := m.configmux.put(newPod("u1", "web", "a"), change); err != nil {
		t.Fatal(err)
	}
	m.eventually("web is ready", m.ready("u1"))
	parents := func() map[string]string { // maps the name of each span of the trace to the name of its parent
		names, of := map[string]string{"b7ad6b7169203331": "change"}, map[string]string{}
		for _, s := range m.spans.Ended() {
			names[s.SpanContext().SpanID().String()] = s.Name()
		}
		for _, s := range m.spans.Ended() {
			if _, seen := of[s.Name()]; !seen && s.SpanContext().TraceID().String() == "0af7651916cd43dd8448eb211c80319c" {
				of[s.Name()] = names[s.Parent().SpanID().String()]
			}
		}
		return of
	}
	m.eventually("the trace is whole", func() bool {
		of := parents()
		return of["dispatch"] == "change" && of["pod.sync"] == "dispatch" && of["runtime.v1.RuntimeService/RunPodSandbox"] == "sandbox" &&
			of["sandbox"] == "pod.sync" && of["container.start"] == "pod.sync" && of["status.update"] == "container.create"
	})
}

func TestTwoOfOneStateDirAreRefused(t *testing.T) {
	m := newMachine(t)
	m.put(newPod("u1", "web", "a"))
	m.configmux.speak()
	m.start()
	m.eventually("web is ready", m.ready("u1")) // Then the first process is up completely.
	var held *statedir.HeldError
	err := run(t.Context(), m.cfg, m.tel)
	if !errors.As(err, &held) || held.Holder.PID != os.Getpid() ||
		!strings.Contains(err.Error(), "stop that process, or use another --state-dir") {
		t.Errorf("run() error = %v, want a %T, held.Holder.PID %v and with %q",
			err, held, os.Getpid(), "stop that process, or use another --state-dir")
	}
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	m := newMachine(t)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", m.cfg.Kubelet.ReadOnlyPort))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nothing depends on it
	if err := run(t.Context(), m.cfg, m.tel); err == nil || !strings.Contains(err.Error(), "readOnlyPort") {
		t.Errorf("run() error = %v, want an error with %q", err, "readOnlyPort")
	}
}
