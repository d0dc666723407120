package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// TestADeathWhilePLEGIsDeadIsReportedAndHandledOnce kills pleg, then a container; the next pleg reports the exit, and
// syncloop restarts the container once.
func TestADeathWhilePLEGIsDeadIsReportedAndHandledOnce(t *testing.T) {
	place(t, "mourned.yaml", manifest("mourned", 1, "sleep"))
	id := bare(await(t, "mourned", "Ready", ready))
	process := processOf(t, id)
	events := watchLifecycle(t)
	old := pid(t, "pleg")
	kill(t, "pleg")
	died := time.Now()
	if err := syscall.Kill(process, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitNewPID(t, "pleg", old)
	again := await(t, "mourned", "started again", func(p *v1.Pod) bool {
		return p != nil && ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	// The second kill comes when all events of the first were handled: no event is repeated.
	awaitThat(t, "the start is reported", func() bool { return len(events()["ContainerStarted "+bare(again)]) == 1 })
	old = pid(t, "pleg")
	kill(t, "pleg")
	awaitNewPID(t, "pleg", old)
	awaitThat(t, "pleg answers again", func() bool { return answers(t, "pleg") })
	deaths := events()["ContainerDied "+id]
	if len(deaths) != 1 || deaths[0].ExitCode != 137 || deaths[0].Time.Before(died) ||
		deaths[0].Time.After(died.Add(5*time.Second)) {
		t.Errorf("the exit at %v is reported as %+v, want it once with exit code 137 and its time", died, deaths)
	}
	if p := await(t, "mourned", "Ready", ready); bare(p) != bare(again) || p.Status.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("it was started again once more:\n%s", describe(p))
	}
}

// bare returns the id of a pod's only container as the runtime knows it.
func bare(p *v1.Pod) string {
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	return id
}

// processOf returns the first process of a container, by its cgroup.
func processOf(t *testing.T, containerID string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(data, []byte(containerID)) {
			continue // the process has ended, or belongs to another container
		}
		number, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
	t.Fatalf("container %s has no process", containerID)
	return 0
}

// happening is a lifecycle event of quartet events.
type happening struct {
	Time              time.Time
	Type, ContainerID string
	ExitCode          int
}

// watchLifecycle follows every lifecycle event, through restarts of pleg, until the test ends. The returned function
// returns the events so far, by type and container.
func watchLifecycle(t *testing.T) func() map[string][]happening {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, filepath.Join(livenode.Bin(), "quartet"), "events", "-w", "-o", "json", "--types", "Lifecycle",
		"--state-dir", node.Layout.StateDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[string][]happening{}
	begun, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		decoder := json.NewDecoder(out)
		for begun := sync.OnceFunc(func() { close(begun) }); ; begun() {
			var h happening
			if decoder.Decode(&h) != nil {
				return // it was stopped
			}
			mu.Lock()
			seen[h.Type+" "+h.ContainerID] = append(seen[h.Type+" "+h.ContainerID], h)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		_ = cmd.Wait() // it was stopped
	})
	select {
	case <-begun:
	case <-ended:
	}
	return func() map[string][]happening {
		mu.Lock()
		defer mu.Unlock()
		copied := map[string][]happening{}
		for key, all := range seen {
			copied[key] = append([]happening(nil), all...)
		}
		return copied
	}
}
