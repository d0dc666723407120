package executor_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
)

// causes returns the causes in the log lines with a message, in their order, and drops all lines.
func (l *logLines) causes(message string) string {
	var causes []string
	for line := range strings.Lines(l.Take()) {
		if !strings.Contains(line, `msg="`+message+`"`) {
			continue
		}
		_, cause, _ := strings.Cut(line, " cause=")
		causes = append(causes, strings.Trim(strings.TrimSpace(cause), `"`))
	}
	return strings.Join(causes, "; ")
}

// newLogged returns a node whose log is recorded.
func newLogged(t *testing.T) (*node, *logLines) {
	logged := &logLines{}
	return newNode(t, func(c *executor.Config) { c.Logger = logged.logger() }), logged
}

func TestTheLogNamesTheCauseOfEachStart(t *testing.T) {
	n, logged := newLogged(t)
	pod := newPod("init-a", "b", "c")
	started := func(want string) {
		t.Helper()
		n.sync(pod)
		if got := logged.causes("started a container"); got != want {
			t.Errorf("causes %q, want %q", got, want)
		}
	}
	started("first start")
	n.cri.Exit(n.id(pod, "init-a"), 0)
	started("first start; first start")
	n.cri.Exit(n.id(pod, "c"), 3)
	n.manager = executor.New(n.config) // another process handles what happened before its start
	started("exited with 3 (Error)")

	const replaced = "sandbox replaced (pod sandbox is not ready), exited with "
	n.cri.KillSandbox(n.observe(pod).Sandboxes[0].Id)
	started(replaced + "0 (Completed)")
	n.cri.Exit(n.id(pod, "init-a"), 0)
	n.manager = executor.New(n.config)
	// containers of a new sandbox keep their cause; b is in a back-off because it has ended before
	started(replaced + "137 (Error)")

	// The runtime has created its log, as a real one does.
	dir := filepath.Join(n.config.PodLogsDir, "shop_web_u-1", "b")
	if err := os.WriteFile(filepath.Join(dir, "2.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range n.observe(pod).Containers {
		if c.Name == "b" {
			if err := n.runtime.RemoveContainer(n.ctx, c.Id); err != nil {
				t.Fatal(err)
			}
		}
	}
	started("the runtime has no record of the one before")
	if got, want := n.created(pod, "b").Annotations[podlabels.StartCause], "the runtime has no record of the one before"; got != want {
		t.Errorf("the container itself says %q, want %q", got, want)
	}
}

// TestAStartThatIsCutShortHasSaidItsCause checks that each started container has a cause in the log, even if the agent
// is killed: the line is logged before the runtime is called.
func TestAStartThatIsCutShortHasSaidItsCause(t *testing.T) {
	n, logged := newLogged(t)
	pod := newPod("a")
	n.sync(pod)
	n.cri.Exit(n.id(pod, "a"), 9)
	gate := n.cri.Hang("StartContainer", "")
	logged.causes("")
	process, kill := context.WithCancel(n.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := n.manager.SyncPod(process, pod, n.observe(pod))
		ended <- err
	}()
	eventually.That(t, "the container is being started", func() bool { return gate.Waiting() == 1 })
	if got, want := logged.causes("starting a container"), "exited with 9 (Error)"; got != want {
		t.Errorf("causes %q, want %q", got, want)
	}
	kill()
	if err := <-ended; err == nil {
		t.Error("the start was not interrupted")
	}
	gate.Open()
}

// TestAPodCannotForgeTheReasonOfItsSandbox also checks that the first sandbox has a cause.
func TestAPodCannotForgeTheReasonOfItsSandbox(t *testing.T) {
	n := newNode(t, func(c *executor.Config) { c.Logger = slog.New(slog.DiscardHandler) })
	pod := newPod("a")
	pod.Annotations = map[string]string{podlabels.StartCause: "by magic"}
	n.sync(pod)
	sandboxes, err := n.runtime.ListPodSandbox(n.ctx, &runtimeapi.PodSandboxFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sandboxes[0].GetAnnotations()[podlabels.StartCause], "no pod sandbox exists"; got != want {
		t.Errorf("the sandbox was made because of %q, want %q", got, want)
	}
}

// TestAStartUnderWayComesToItsEnd checks that a start is not cancelled midway when the pod is to end, because
// containerd may then be unable to remove the container. It also checks that nothing else is started.
func TestAStartUnderWayComesToItsEnd(t *testing.T) {
	n, logged := newLogged(t)
	pod := newPod("a", "b")
	gate := n.cri.Hang("StartContainer", "")
	ctx, cancel := context.WithCancel(n.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := n.manager.SyncPod(ctx, pod, nil)
		ended <- err
	}()
	eventually.That(t, "the first is being started", func() bool { return gate.Waiting() == 1 })
	eventually.That(t, "both are created", func() bool { return len(n.observe(pod).Containers) == 2 })
	cancel()
	gate.Open()
	if err := <-ended; err == nil {
		t.Error("interrupted work succeeded")
	}
	if got, want := logged.causes("started a container"), "first start"; got != want {
		t.Errorf("started for %q, want one start", got)
	}
	shown := strings.Fields(n.describe(pod))
	slices.Sort(shown) // either may be created first
	if want := []string{"a-0:running", "b-0:created", "sandbox-0:ready"}; !slices.Equal(shown, want) {
		t.Errorf("the runtime has %q, want %q", shown, want)
	}
}
