package executor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// restartAllOn adds a rule that restarts all containers of the pod when the container exits with a code.
func restartAllOn(c *v1.Container, code int32) {
	never := v1.ContainerRestartPolicyNever
	c.RestartPolicy = &never
	c.RestartPolicyRules = []v1.ContainerRestartRule{{
		Action: v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
			Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{code},
		},
	}}
}

func TestAPodBeginsAgainInItsSandboxWhenARuleSaysSo(t *testing.T) {
	n := newNode(t)
	n.cri.OnStart(func(c fakecri.Container) (int32, bool) { return 0, strings.HasPrefix(c.Name, "init-") })
	pod := newPod("init-1", "a", "b")
	pod.Spec.RestartPolicy = v1.RestartPolicyNever
	restartAllOn(&pod.Spec.Containers[0], 42)
	n.sync(pod)
	n.sync(pod)
	logs := filepath.Join(n.config.PodLogsDir, "shop_web_u-1")
	for _, name := range []string{"init-1", "a", "b"} { // as the runtime writes them
		if err := os.WriteFile(filepath.Join(logs, name, "0.log"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	requester, other := n.id(pod, "a"), n.id(pod, "b")
	n.cri.Exit(requester, 42)
	n.cri.ResetCalls()
	n.sync(pod)
	n.want(pod, "sandbox-0:ready init-1-1:exited(0)")
	var removed []string
	for _, call := range n.cri.Calls() {
		if call.Method == "RemoveContainer" {
			removed = append(removed, call.IDs...)
		}
	}
	if len(removed) != 3 || removed[0] != other || removed[2] != requester {
		t.Errorf("removed %v, want %s first and %s, which asked, last", removed, other, requester)
	}
	n.sync(pod)
	got := n.describe(pod)
	if !strings.Contains(got, "a-1:running") || !strings.Contains(got, "b-1:running") {
		t.Errorf("the runtime has %s, want text with %q and with %q", got, "a-1:running", "b-1:running")
	}
	if _, err := os.Stat(filepath.Join(logs, "a", "0.log")); err != nil {
		t.Errorf("the logs of what was removed: %v", err)
	}
	// The next restart is delayed by the back-off, like any other crash.
	n.cri.Exit(n.id(pod, "a"), 42)
	if result := n.sync(pod); result.Reasons["a"].Reason != "CrashLoopBackOff" || result.Wrote {
		t.Errorf("result %+v, want a back-off", result)
	}
}

func TestAnEphemeralContainerSeesItsTargetAndRunsOnce(t *testing.T) {
	n := newNode(t)
	pod := newPod("a")
	n.sync(pod)
	target := n.id(pod, "a")
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "look", Image: "image:1"}, TargetContainerName: "a"},
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "lost", Image: "image:1"}, TargetContainerName: "b"},
	}
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if err == nil || result.Reasons["lost"].Reason != "CreateContainerConfigError" || !strings.Contains(result.Reasons["lost"].Message, "unable to find target container b") {
		t.Errorf("reasons %v, error %v", result.Reasons, err)
	}
	n.want(pod, "sandbox-0:ready a-0:running look-0:running")
	pid := n.created(pod, "look").GetLinux().GetSecurityContext().GetNamespaceOptions()
	if pid.GetPid() != runtimeapi.NamespaceMode_TARGET || pid.GetTargetId() != target {
		t.Errorf("namespaces %v, want the processes of %s", pid, target)
	}
	n.cri.Exit(n.id(pod, "look"), 1)
	pod.Spec.EphemeralContainers = pod.Spec.EphemeralContainers[:1]
	if n.sync(pod).Wrote {
		t.Error("an ephemeral container was started again")
	}
}

func TestThePreStopHookOfASidecarDoesNotWaitForItsTurn(t *testing.T) {
	n := newNode(t)
	always := v1.ContainerRestartPolicyAlways
	pod := newPod("init-1", "a")
	sidecar := &pod.Spec.InitContainers[0]
	sidecar.RestartPolicy = &always
	sidecar.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"bye"}}}}
	n.sync(pod)
	n.sync(pod)
	gate := n.cri.Hang("StopContainer", n.id(pod, "a"))
	ended := make(chan error, 1)
	go func() { ended <- n.manager.KillPod(n.ctx, pod, n.observe(pod), 30) }()
	eventually.That(t, "the hook runs while the ordinary container ends", func() bool {
		return gate.Waiting() > 0 && n.cri.Count("ExecSync", "") == 1
	})
	if got := n.cri.Count("StopContainer", n.id(pod, "init-1")); got != 0 {
		t.Error("the sidecar is stopped before the ordinary container")
	}
	gate.Open()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	n.want(pod, "sandbox-0:dead init-1-0:exited(143) a-0:exited(143)")
}

func TestAPodWaitsForWhatTheRuntimeDoesNotHave(t *testing.T) {
	for name, test := range map[string]struct {
		ask  func(*v1.PodSpec)
		want string
	}{
		"no such handler": {func(s *v1.PodSpec) { s.RuntimeClassName = new("kata") }, `spec.runtimeClassName: the runtime has no handler named "kata"; it has runc`},
		"no user namespaces": {func(s *v1.PodSpec) { s.HostUsers = new(false) },
			"spec.hostUsers: can't set `spec.hostUsers: false`, runtime does not support user namespaces"},
		"a handler without user namespaces": {func(s *v1.PodSpec) { s.HostUsers, s.RuntimeClassName = new(false), new("runc") },
			`RuntimeClass handler "runc" does not support user namespaces`},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod := newPod("a")
			test.ask(&pod.Spec)
			result, err := n.manager.SyncPod(n.ctx, pod, nil)
			if err == nil || !errors.As(result.SandboxError, new(*executor.UnsupportedError)) ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("result %+v, error %v, want %s", result, err, test.want)
			}
			n.want(pod, "")
		})
	}
}
