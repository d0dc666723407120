package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// stopProcess suspends a process of the node by SIGSTOP, until the returned function or the end of the test. The
// supervisor is suspended too, because it would replace the process.
func stopProcess(t *testing.T, name string) (resume func()) {
	t.Helper()
	stopped := map[string]int{"quartet": pid(t, "quartet"), name: pid(t, name)}
	for _, id := range stopped {
		if err := syscall.Kill(id, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		awaitThat(t, name+" is stopped", func() bool { return isStopped(t, id) })
	}
	resume = func() {
		for _, id := range stopped {
			_ = syscall.Kill(id, syscall.SIGCONT) // it may have ended
		}
	}
	t.Cleanup(func() {
		resume()
		awaitThat(t, name+" answers again", func() bool { return name == "containerd" || answers(t, name) })
		awaitHealth(t)
	})
	return resume
}

// evicting has the evictions that have begun, by the name of the pod.
var evicting = map[string]struct {
	uid  string
	done chan error
}{}

// evictPod begins to evict a pod through syncloop's API, whose answer waits for a stopped syncloop.
func evictPod(t *testing.T, name string) {
	t.Helper()
	conn, err := rpc.Dial(node.Layout.Address(layout.SyncLoop))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	begun, ctx := evicting[name], t.Context()
	go func() {
		_, err := enginev1.NewEngineServiceClient(conn).EvictPod(ctx, &enginev1.EvictPodRequest{
			PodUid: begun.uid, Reason: "Evicted", Message: "the test needs its place", GracePeriodSeconds: -1,
		})
		begun.done <- err
	}()
}

func evicted(p *v1.Pod) bool {
	return p != nil && p.Status.Phase == v1.PodFailed && p.Status.Reason == "Evicted" &&
		p.Status.ContainerStatuses[0].State.Terminated != nil
}

// crashing has the processes of the pods that will crash, which only the runtime knows.
var crashing = map[string]int{}

// deeds are what a user wants of a node. Each is done while a process is stopped.
var deeds = map[string]struct {
	// prepare runs before the process is stopped, begin after it, and await returns when the deed is done.
	prepare, begin, await func(t *testing.T, name string)
}{
	"start": {
		prepare: func(*testing.T, string) {},
		begin:   func(t *testing.T, name string) { t.Helper(); place(t, name+".yaml", manifest(name, 1, "sleep")) },
		await:   func(t *testing.T, name string) { t.Helper(); await(t, name, "Ready", ready) },
	},
	"delete": {
		prepare: runPod,
		begin:   func(t *testing.T, name string) { t.Helper(); takeAway(t, name+".yaml") },
		await:   awaitGone,
	},
	"evict": {
		prepare: func(t *testing.T, name string) {
			t.Helper()
			runPod(t, name)
			one := evicting[name]
			one.uid, one.done = string(await(t, name, "Ready", ready).UID), make(chan error, 1)
			evicting[name] = one
		},
		begin: evictPod,
		await: func(t *testing.T, name string) {
			t.Helper()
			if err := <-evicting[name].done; err != nil {
				t.Fatal(err)
			}
			await(t, name, "evicted", evicted)
		},
	},
	"crash": {
		prepare: func(t *testing.T, name string) {
			t.Helper()
			runPod(t, name)
			crashing[name] = processOf(t, bare(await(t, name, "Ready", ready)))
		},
		begin: func(t *testing.T, name string) {
			t.Helper()
			if err := syscall.Kill(crashing[name], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		await: func(t *testing.T, name string) {
			t.Helper()
			await(t, name, "restarted", func(p *v1.Pod) bool {
				return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1
			})
		},
	},
	"exec": {
		prepare: runPod,
		begin:   func(*testing.T, string) {},
		await: func(t *testing.T, name string) {
			t.Helper()
			awaitThat(t, "a command runs in "+name, func() bool { return runs(t, name) })
		},
	},
	"heartbeat": {
		prepare: func(*testing.T, string) {},
		begin:   func(_ *testing.T, name string) { begun[name] = time.Now() },
		await: func(t *testing.T, name string) {
			t.Helper()
			awaitThat(t, "a heartbeat of the Node", func() bool { return heartbeat(t).After(begun[name]) })
		},
	},
	"logs": {
		prepare: runPod,
		begin:   func(*testing.T, string) {},
		await: func(t *testing.T, name string) {
			t.Helper()
			p, err := pod(t.Context(), name)
			if err != nil || p == nil {
				t.Fatalf("pod %s: %v, %v", name, p, err)
			}
			quartet(t, "logs", "--namespace", "e2e", p.Name)
		},
	},
}

// begun has when the process was stopped, by the name of the deed, and execPort is the port of syncloop's HTTP API.
var (
	begun    = map[string]time.Time{}
	execPort string
)

// serveExec starts the processes with an HTTP API that asks nobody who they are.
func serveExec(t *testing.T) {
	t.Helper()
	execPort = freePort(t)
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "address: 127.0.0.1\nport: " + execPort + "\nauthentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\n" +
		"authorization: {mode: AlwaysAllow}\n" + livenode.AnyMachine
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	node.RestartServices(t, "--config", config)
}

// runs runs a command in the first container of a pod, and reports whether that was done within two seconds.
func runs(t *testing.T, name string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	p, err := pod(ctx, name)
	return err == nil && p != nil && execIn(ctx, "https://127.0.0.1:"+execPort, "/exec/e2e/"+p.Name+"/main") == nil
}

// heartbeat returns the time of the last heartbeat of the Node.
func heartbeat(t *testing.T) time.Time {
	t.Helper()
	found := nodeNow(t)
	if len(found.Status.Conditions) == 0 {
		return time.Time{}
	}
	return found.Status.Conditions[0].LastHeartbeatTime.Time
}

// nodeNow returns the Node of nodestatus; an empty one if that does not answer.
func nodeNow(t *testing.T) v1.Node {
	t.Helper()
	var found v1.Node
	out, err := node.Command(t.Context(), "get", "node", "-o", "json")
	if err != nil || json.Unmarshal([]byte(out), &found) != nil {
		return v1.Node{}
	}
	return found
}

// TestOtherProcessesAreUpgradedWhileOneIsStopped stops each process, and the runtime, one after the other, and replaces
// the others as an upgrade does. They serve at once, and no pod notices.
func TestOtherProcessesAreUpgradedWhileOneIsStopped(t *testing.T) {
	runPod(t, "upgraded")
	before := fmt.Sprint(containerIDs(await(t, "upgraded", "Ready", ready)))
	for _, stopped := range append([]string{"containerd"}, names()...) {
		t.Run(stopped, func(t *testing.T) {
			id := pid(t, stopped)
			if err := syscall.Kill(id, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = syscall.Kill(id, syscall.SIGCONT) // it may have ended
				awaitHealth(t)
			})
			awaitThat(t, stopped+" is stopped", func() bool { return isStopped(t, id) })
			since := time.Now()
			for _, name := range names() {
				if name == stopped {
					continue
				}
				old := pid(t, name)
				if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				awaitNewPID(t, name, old)
				awaitThat(t, "the new "+name+" serves", func() bool { return answers(t, name) })
			}
			t.Logf("without %s the others were replaced within %v", stopped, time.Since(since).Round(time.Millisecond))
			if pid(t, stopped) != id || !isStopped(t, id) {
				t.Errorf("%s is not stopped any more", stopped)
			}
		})
	}
	if after := fmt.Sprint(containerIDs(await(t, "upgraded", "Ready", ready))); after != before {
		t.Errorf("the pod's containers went from %s to %s", before, after)
	}
}

// names returns the names of the services.
func names() (all []string) {
	for _, service := range layout.Services() {
		all = append(all, string(service))
	}
	return all
}

func runPod(t *testing.T, name string) {
	t.Helper()
	place(t, name+".yaml", manifest(name, 1, "sleep"))
	await(t, name, "Ready", ready)
}

// TestWhatDoesNotNeedAStoppedProcessGoesOn stops each process, and the runtime, one after the other. What does not need
// it is done at once, and the rest as soon as it continues.
func TestWhatDoesNotNeedAStoppedProcessGoesOn(t *testing.T) {
	serveExec(t)
	all := []string{"start", "delete", "evict", "crash", "logs", "exec"}
	for _, test := range []struct {
		stopped string
		// goOn are the deeds that go on, and wait those that wait for the process.
		goOn, wait []string
	}{
		// A pod ends by the runtime's word alone.
		{"pleg", []string{"delete", "evict", "exec", "heartbeat"}, []string{"start", "crash", "logs"}},
		{"configmux", []string{"evict", "crash", "logs", "exec", "heartbeat"}, []string{"start", "delete"}},
		{"nodestatus", all, []string{"heartbeat"}},
		// TestTheNodeSaysWhatHangs has the heartbeats without these two.
		{"syncloop", nil, []string{"start", "delete", "evict", "crash", "exec"}},
		{"containerd", []string{"logs"}, []string{"start", "delete", "evict", "exec"}},
	} {
		t.Run(test.stopped, func(t *testing.T) {
			name := func(deed string) string { return fmt.Sprintf("%s-no-%s", deed, test.stopped) }
			for _, deed := range append(test.goOn, test.wait...) {
				deeds[deed].prepare(t, name(deed))
			}
			resume := stopProcess(t, test.stopped)
			for _, deed := range append(test.goOn, test.wait...) {
				deeds[deed].begin(t, name(deed))
			}
			begun := time.Now()
			for _, deed := range test.goOn {
				deeds[deed].await(t, name(deed))
			}
			if !isStopped(t, pid(t, test.stopped)) {
				t.Errorf("%s is not stopped any more", test.stopped)
			}
			t.Logf("without %s: %v went on and took %v", test.stopped, test.goOn, time.Since(begun).Round(time.Millisecond))
			resume()
			for _, deed := range test.wait {
				deeds[deed].await(t, name(deed))
			}
		})
	}
}

// TestAProcessThatStandsStillIsReplaced stops all four processes. The supervisor lets each log its goroutines, and
// replaces it; no pod notices. A configmux that stands by below its guard is stopped, too, and the guard ends. In a
// container, the engine would start both again.
func TestAProcessThatStandsStillIsReplaced(t *testing.T) {
	runPod(t, "watched")
	before := fmt.Sprint(containerIDs(await(t, "watched", "Ready", ready)))
	old := map[string]int{}
	for _, service := range layout.Services() {
		old[string(service)] = pid(t, string(service))
	}
	guard, guardLog, standby := guardStandby(t)
	begun := time.Now()
	for _, id := range append(slices.Collect(maps.Values(old)), standby) {
		if err := syscall.Kill(id, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for name, id := range old {
		awaitNewPID(t, name, id)
	}
	took := time.Since(begun)
	t.Logf("all four were replaced after %v", took.Round(time.Second))
	if took < 25*time.Second {
		t.Errorf("they were replaced after %v, before the supervisor's patience of 30s was over", took)
	}
	if err := guard.Wait(); err == nil || !strings.Contains(guardLog.String(), "SIGQUIT: quit") {
		t.Errorf("the guard of the standby: %v, want an exit code and the goroutines of its child:\n%s", err, guardLog)
	}
	runPod(t, "after-the-watch")
	if after := fmt.Sprint(containerIDs(await(t, "watched", "Ready", ready))); after != before {
		t.Errorf("the pod's containers went from %s to %s", before, after)
	}
	awaitHealth(t)
	logs, err := filepath.Glob(filepath.Join(node.Layout.Logs(), "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	for _, file := range logs {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		log.Write(data)
	}
	for name := range old {
		if want := fmt.Sprintf("%-10s | SIGQUIT: quit", name); !strings.Contains(log.String(), want) {
			t.Errorf("the log does not have the goroutines of %s: no %q", name, want)
		}
	}
}

// guardStandby starts a second configmux of the node below its guard, as in a container. It returns the guard, the log
// of both, and the process id of the configmux, which stands by.
func guardStandby(t *testing.T) (guard *exec.Cmd, log *logbuffer.Buffer, standby int) {
	t.Helper()
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid(t, "configmux")))
	if err != nil {
		t.Fatal(err)
	}
	flags := strings.Split(strings.Trim(string(args), "\x00"), "\x00")[1:]
	guard = exec.Command(
		filepath.Join(livenode.Bin(), "configmux"), slices.Concat([]string{"guard", "--"}, flags, []string{"--standby"})...,
	)
	log = &logbuffer.Buffer{}
	guard.Stdout, guard.Stderr = log, log
	guard.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guard.Process.Kill() }) // it fails after Wait
	awaitThat(t, "it stands by", func() bool { return strings.Contains(log.String(), "on standby") })
	all, err := procfs.AllProcs()
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range all {
		if stat, err := process.Stat(); err == nil && stat.PPID == guard.Process.Pid {
			return guard, log, stat.PID
		}
	}
	t.Fatalf("the guard has no child:\n%s", log)
	return nil, nil, 0
}
