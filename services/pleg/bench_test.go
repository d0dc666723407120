package pleg

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// benchPLEG is a pleg in a separate process: the binary of make build.
type benchPLEG struct {
	pid    int
	client lifecyclev1.LifecycleServiceClient
}

// startBenchPLEG starts a pleg on a runtime and waits until it is in a relist mode; it ends with the benchmark.
func startBenchPLEG(b *testing.B, endpoint string, mode lifecyclev1.RelistMode) benchPLEG {
	b.Helper()
	dir := harness.ShortDir(b)
	listen := "unix://" + filepath.Join(dir, "pleg.sock")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(
		filepath.Join(harness.BinDir(b), "pleg"),
		"--listen",
		listen,
		"--state-dir",
		dir,
		"--container-runtime-endpoint",
		endpoint,
	)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		b.Fatalf("starting pleg, which make build builds: %v", err)
	}
	conn, err := rpc.Dial(listen)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			b.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			b.Errorf("pleg ended with %v", err)
		}
		if err := conn.Close(); err != nil {
			b.Error(err)
		}
		if err := log.Close(); err != nil {
			b.Error(err)
		}
	})
	p := benchPLEG{pid: cmd.Process.Pid, client: lifecyclev1.NewLifecycleServiceClient(conn)}
	deadline := time.Now().Add(patience)
	for {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		health, err := p.client.GetHealth(ctx, &lifecyclev1.GetHealthRequest{}, grpc.WaitForReady(true))
		cancel()
		if err == nil && health.GetHealthy() && health.GetMode() == mode {
			return p
		}
		if time.Now().After(deadline) {
			b.Fatalf("pleg is not in the mode %v after %v: %v, %v", mode, patience, health, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// used returns the processor time of a process: the sum of proc_pid_schedstat(5) of its threads, in nanoseconds.
func (p benchPLEG) used(b *testing.B) time.Duration {
	b.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.pid))
	if err != nil || len(files) == 0 {
		b.Fatalf("no schedstat of process %d: %v", p.pid, err)
	}
	var total time.Duration
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		nanos, err := strconv.ParseInt(strings.Fields(string(data))[0], 10, 64)
		if err != nil {
			b.Fatalf("%s: %v", file, err)
		}
		total += time.Duration(nanos)
	}
	return total
}

// resident returns the resident memory of a process in MiB, including shared pages.
func (p benchPLEG) resident(b *testing.B) float64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid))
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return float64(pages) * float64(os.Getpagesize()) / (1 << 20)
}

// BenchmarkIdle runs pods of two containers on a fake runtime, without any change, and measures the resources of pleg
// in a separate process.
func BenchmarkIdle(b *testing.B) {
	for _, in := range []struct {
		name string
		mode lifecyclev1.RelistMode
		// length is long enough for several full relists in the mode.
		length time.Duration
	}{{"generic", generic, 10 * time.Second}, {"evented", evented, 32 * time.Second}} {
		for _, pods := range []int{10, 100, 500} {
			b.Run(fmt.Sprintf("%s/%d", in.name, pods), func(b *testing.B) {
				fake := fakecri.New(b)
				fake.SetEventsSupported(in.mode == evented)
				for i := range pods {
					fake.RunPod(fakecri.Pod{UID: fmt.Sprint("uid-", i), Containers: []string{"app", "sidecar"}})
				}
				p := startBenchPLEG(b, fake.Endpoint(), in.mode)
				<-time.After(2 * time.Second) // until the start is complete
				for b.Loop() {
					fake.ResetCalls()
					begun, before := time.Now(), p.used(b)
					<-time.After(in.length)
					took, used := time.Since(begun), p.used(b)-before
					b.ReportMetric(100*used.Seconds()/took.Seconds(), "%-of-a-core")
					b.ReportMetric(p.resident(b), "MiB")
					b.ReportMetric(float64(len(fake.Calls()))/took.Seconds(), "calls/s")
				}
				b.ReportMetric(0, "ns/op") // it is the duration of the measurement
			})
		}
	}
}

// BenchmarkExitToEvent kills containers of a real containerd, one after another, and measures from the runtime's word
// for when one ended to the receipt of ContainerDied by a subscriber of pleg (p50-ms, p99-ms). The runtime's part of
// that is until its own event is received by who listens to it directly: containerd tells of an end when it has cleaned
// up after the container. The rest is pleg's.
func BenchmarkExitToEvent(b *testing.B) {
	const deaths = 100
	containerd := harness.StartContainerd(b)
	client := harness.CRIClient(b, containerd.Endpoint)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	criRuntime, err := client.Runtime(ctx)
	if err != nil {
		b.Fatal(err)
	}
	p := startBenchPLEG(b, containerd.Endpoint, evented)
	received := make(chan *lifecyclev1.Event, deaths)
	watch, err := p.client.WatchEvents(ctx, &lifecyclev1.WatchEventsRequest{})
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{}, 2)
	receipts := make(chan time.Time, deaths)
	go func() {
		defer func() { ended <- struct{}{} }()
		for {
			m, err := watch.Recv()
			if err != nil {
				return
			}
			if m.GetEvent().GetType() == died {
				receipts <- time.Now()
				received <- m.GetEvent()
			}
		}
	}()
	hints := make(chan time.Time, deaths)
	go func() {
		defer func() { ended <- struct{}{} }()
		_ = client.Events(ctx, func() {}, func(e *runtimeapi.ContainerEventResponse) { // it ends with ctx
			if e.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				hints <- time.Now()
			}
		})
	}()
	kill := newKiller(b, criRuntime)
	kill.death(ctx, 0) // until the start is complete
	<-receipts
	<-received
	<-hints
	var all, own, rest []float64
	for b.Loop() {
		for i := range deaths {
			kill.death(ctx, i+1)
			at, event, hint := <-receipts, <-received, <-hints
			exited := event.GetOccurredAt().AsTime()
			all = append(all, 1000*at.Sub(exited).Seconds())
			own = append(own, 1000*hint.Sub(exited).Seconds())
			rest = append(rest, 1000*at.Sub(hint).Seconds())
		}
	}
	for _, percent := range []int{50, 99} {
		b.ReportMetric(rank(all, percent), fmt.Sprintf("p%d-ms", percent))
		b.ReportMetric(rank(own, percent), fmt.Sprintf("runtime-p%d-ms", percent))
		b.ReportMetric(rank(rest, percent), fmt.Sprintf("pleg-p%d-ms", percent))
	}
	b.ReportMetric(0, "ns/op") // it is that of the runtime's calls
	cancel()
	for range cap(ended) {
		<-ended
	}
}

// rank returns a percentile of values.
func rank(values []float64, percent int) float64 {
	slices.Sort(values)
	return values[(len(values)*percent+99)/100-1]
}

// killer starts containers in one sandbox and kills them.
type killer struct {
	b       *testing.B
	runtime internalapi.RuntimeService
	sandbox string
	config  *runtimeapi.PodSandboxConfig
}

func newKiller(b *testing.B, service internalapi.RuntimeService) *killer {
	b.Helper()
	k := &killer{b: b, runtime: service, config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "bench", Namespace: "default", Uid: "bench"}, Hostname: "bench",
		Labels: map[string]string{podlabels.PodName: "bench", podlabels.PodNamespace: "default", podlabels.PodUID: "bench"},
		Linux:  &runtimeapi.LinuxPodSandboxConfig{},
	}}
	var err error
	if k.sandbox, err = service.RunPodSandbox(b.Context(), k.config, ""); err != nil {
		b.Fatal(err)
	}
	return k
}

// death starts a container, kills its program as a crash would end it, and removes the previous container.
func (k *killer) death(ctx context.Context, i int) {
	k.b.Helper()
	labels := map[string]string{podlabels.ContainerName: "app"}
	for key, value := range k.config.GetLabels() {
		labels[key] = value
	}
	id, err := k.runtime.CreateContainer(ctx, k.sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{
			Name:    "app",
			Attempt: uint32(i),
		},
		Image:  &runtimeapi.ImageSpec{Image: harness.HelloImage},
		Args:   []string{"sleep"},
		Labels: labels,
		Linux:  &runtimeapi.LinuxContainerConfig{},
	}, k.config)
	if err != nil {
		k.b.Fatal(err)
	}
	if err := k.runtime.StartContainer(ctx, id); err != nil {
		k.b.Fatal(err)
	}
	old, err := k.runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{
		PodSandboxId: k.sandbox, State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED},
	})
	if err != nil {
		k.b.Fatal(err)
	}
	for _, c := range old {
		if err := k.runtime.RemoveContainer(ctx, c.GetId()); err != nil {
			k.b.Fatal(err)
		}
	}
	status, err := k.runtime.ContainerStatus(ctx, id, true)
	if err != nil {
		k.b.Fatal(err)
	}
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil || info.PID <= 1 {
		k.b.Fatalf("the runtime does not tell the process id of container %s: %v", id, err)
	}
	if err := syscall.Kill(info.PID, syscall.SIGKILL); err != nil {
		k.b.Fatal(err)
	}
}
