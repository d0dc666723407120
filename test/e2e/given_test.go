package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestAPodKeepsItsUserNamespaceWhenSyncloopIsKilled(t *testing.T) {
	place(t, "mapped.yaml", strings.Replace(manifest("mapped", 5, "sleep"), "spec:\n", "spec:\n  hostUsers: false\n", 1))
	p := await(t, "mapped", "Ready", ready)
	before := containerIDs(p)
	file := filepath.Join(node.Layout.Root(), "pods", string(p.UID), "userns")
	given, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(given), `"containerId":0,"length":65536`) {
		t.Fatalf("the pod's IDs are %s, error %v, want text with %q", given, err, `"containerId":0,"length":65536`)
	}
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	if p = await(t, "mapped", "Ready", ready); fmt.Sprint(containerIDs(p)) != fmt.Sprint(before) {
		t.Error("the container was restarted")
	}
	if now, err := os.ReadFile(file); err != nil || string(now) != string(given) {
		t.Errorf("the pod's IDs are now %s, error %v; they were %s", now, err, given)
	}
}

func TestAPodThatAsksForWhatTheRuntimeLacksWaitsAndSaysWhy(t *testing.T) {
	place(t, "class.yaml", strings.Replace(manifest("class", 1, "sleep"), "spec:\n", "spec:\n  runtimeClassName: other\n", 1))
	await(t, "class", "waiting with a reason", func(p *v1.Pod) bool {
		return p != nil && p.Status.Phase == v1.PodPending && p.Status.Reason == "UnsupportedPodSpec" &&
			strings.Contains(p.Status.Message, `the runtime has no handler named "other"; it has `)
	})
	place(t, "class.yaml", strings.Replace(manifest("class", 1, "sleep"), "spec:\n", "spec:\n  runtimeClassName: runc\n", 1))
	await(t, "class", "Ready with a handler that there is", ready)
}

func TestAllContainersOfAPodRestartWhenARuleSaysSo(t *testing.T) {
	place(t, "again.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: again, namespace: e2e}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  initContainers:
  - {name: before, image: %[1]q, args: [init]}
  containers:
  - {name: other, image: %[1]q, args: [sleep]}
  - name: asks
    image: %[1]q
    args: [crash, -code, "42", -after, 1s]
    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
`, image))
	first := await(t, "again", "Ready", ready)
	p := await(t, "again", "restarted as a whole", func(p *v1.Pod) bool {
		if p == nil || p.Status.InitContainerStatuses[0].RestartCount == 0 {
			return false
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount == 0 {
				return false
			}
		}
		return true
	})
	if p.Status.PodIP != first.Status.PodIP || p.Status.Phase == v1.PodFailed {
		t.Errorf("it has another sandbox, or has failed:\n%s", describe(p))
	}
}
