package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
)

// health requests the node's health as kubeadm does. It fails when nothing answers.
func health(t *testing.T, path string) (code int, body string, err error) {
	t.Helper()
	// The context of the test has ended when it cleans up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+node.HealthzPort()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

func awaitHealth(t *testing.T) {
	t.Helper()
	answer, healthy := "", false
	defer func() {
		if !healthy {
			t.Logf("the last answer of /healthz is %s", answer)
		}
	}()
	awaitThat(t, "the node is healthy", func() bool {
		code, body, err := health(t, "/healthz")
		answer = fmt.Sprintf("%d %q, %v", code, body, err)
		healthy = err == nil && code == http.StatusOK && body == "ok"
		return healthy
	})
}

// TestHealthBearsWithAProcessThatIsKilled: no answer reports a failure. Only a kill of nodestatus leaves requests
// without an answer for a moment.
func TestHealthBearsWithAProcessThatIsKilled(t *testing.T) {
	awaitHealth(t)
	for _, service := range layout.Services() {
		name := string(service)
		old := pid(t, name)
		kill(t, name)
		for end := time.Now().Add(patience); ; <-time.After(interval) {
			code, body, err := health(t, "/healthz")
			switch {
			case err != nil && service != layout.NodeStatus:
				t.Errorf("%s was killed: %v", name, err)
			case err == nil && code != http.StatusOK && service != layout.NodeStatus:
				t.Errorf("%s was killed: %d %s", name, code, body)
			}
			if err == nil && code == http.StatusOK && pidNow(name) != old && answers(t, name) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s is not back: %d %s %v", name, code, body, err)
			}
		}
	}
}

// pidNow returns the id of a process, 0 while it is not running.
func pidNow(name string) int {
	id, err := node.PID(name)
	if err != nil {
		return 0
	}
	return id
}

// TestHealthFailsWhenAProcessIsStuck checks that the health fails, but not before the tolerance for a Ready node is
// over.
func TestHealthFailsWhenAProcessIsStuck(t *testing.T) {
	awaitReadyNode(t)
	signal := func(sig syscall.Signal, names ...string) {
		t.Helper()
		for _, name := range names {
			if err := syscall.Kill(pid(t, name), sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	stuck := []string{"configmux", "pleg"}
	begun := time.Now()
	signal(syscall.SIGSTOP, append(stuck, "quartet")...) // the supervisor would replace them
	t.Cleanup(func() {
		for _, name := range append(stuck, "nodestatus", "quartet") {
			_ = syscall.Kill(pid(t, name), syscall.SIGCONT)
		}
		awaitHealth(t)
	})
	for _, name := range stuck {
		awaitThat(t, "the health of "+name+" fails", func() bool {
			code, body, err := health(t, "/healthz/"+name)
			return err == nil && code == http.StatusInternalServerError && strings.Contains(body, name)
		})
		if took := time.Since(begun); took < 35*time.Second {
			t.Errorf("the health of %s failed after %s", name, took)
		}
	}
	awaitNotReady(t, begun, 35*time.Second, "pleg ")
	code, body, err := health(t, "/healthz")
	if err != nil || code != http.StatusInternalServerError || !strings.Contains(body, "[-]pleg failed: pleg ") ||
		!strings.Contains(body, "[-]configmux failed: configmux is away") || !strings.Contains(body, "[+]syncloop ok") || !strings.Contains(body, "[+]nodestatus ok") {
		t.Errorf("the health of the node is %d %q, %v", code, body, err)
	}
	signal(syscall.SIGCONT, stuck...)
	awaitHealth(t)
	signal(syscall.SIGSTOP, "nodestatus")
	awaitThat(t, "nodestatus is stopped", func() bool { return isStopped(t, pid(t, "nodestatus")) })
	if code, body, err := health(t, "/healthz"); !errors.Is(err, context.DeadlineExceeded) && !os.IsTimeout(err) {
		t.Errorf("a nodestatus that is stuck answers %d %q, %v", code, body, err)
	}
}

// awaitReadyNode waits until a Node of after the call is ready without a tolerance. A health that passes is not enough
// where a tolerance is measured: it passes, too, while a process recovers from the test before.
func awaitReadyNode(t *testing.T) {
	t.Helper()
	awaitHealth(t)
	begun := time.Now()
	awaitThat(t, "the Node is ready", func() bool {
		for _, c := range nodeNow(t).Status.Conditions {
			if c.Type == v1.NodeReady {
				return c.Status == v1.ConditionTrue && c.Message == "kubelet is posting ready status" &&
					c.LastHeartbeatTime.After(begun)
			}
		}
		return false
	})
}

// awaitNotReady waits until the Node is not ready for a reason, which may be at the earliest after a time since the
// begin. A kubelet takes up to 45 s for a runtime, which is 30 s for the runtime and two periods, and 3 min for its
// PLEG. A busy machine takes longer.
func awaitNotReady(t *testing.T, begun time.Time, earliest time.Duration, reason string) {
	t.Helper()
	awaitThat(t, "the Node is not ready: "+reason, func() bool {
		for _, c := range nodeNow(t).Status.Conditions {
			if c.Type == v1.NodeReady && c.Status == v1.ConditionFalse {
				return c.Reason == "KubeletNotReady" && strings.Contains(c.Message, reason)
			}
		}
		return false
	})
	took := time.Since(begun)
	t.Logf("the Node was not ready after %v: %s", took.Round(time.Second), reason)
	if took < earliest || took > 90*time.Second {
		t.Errorf("the Node was not ready after %v, want between %v and 1m30s", took, earliest)
	}
}

// TestTheNodeSaysWhatHangs stops the runtime and syncloop. The Node has its heartbeats and is not ready for want of
// its runtime, and the health of syncloop fails before a kubelet's does, which is after 2 min.
func TestTheNodeSaysWhatHangs(t *testing.T) {
	awaitReadyNode(t)
	begun := time.Now()
	resumeRuntime := stopProcess(t, "containerd")
	stopProcess(t, "syncloop")
	awaitNotReady(t, begun, 25*time.Second, "the container runtime")
	if at := heartbeat(t); at.Before(begun) {
		t.Errorf("the last heartbeat was at %v, before the processes were stopped", at)
	}
	awaitThat(t, "the health of syncloop fails", func() bool {
		code, body, err := health(t, "/healthz/syncloop")
		return err == nil && code == http.StatusInternalServerError && strings.Contains(body, "syncloop ")
	})
	if took := time.Since(begun); took < 35*time.Second || took > 2*time.Minute {
		t.Errorf("the health of syncloop failed after %v, want between 35s and 2m", took)
	}
	awaitNotReady(t, begun, 35*time.Second, "syncloop ")
	// A syncloop that learns of the runtime before its next turn has none until the runtime answers, and is not healthy.
	resumeRuntime()
}

// isStopped reports whether a process is stopped by a signal. It may answer requests until then.
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	process, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := process.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return stat.State == "T"
}
