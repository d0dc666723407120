package staticpod_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

const greedy = web + `    securityContext: {privileged: true}
  initContainers: [{name: i, image: i, securityContext: {privileged: true}}]
  hostNetwork: true
  hostPID: true
  hostIPC: true
`

// from decodes a manifest as one of a source, when only "file" may have privileges.
func from(source, manifest string) staticpod.Result {
	only := []string{"file"}
	return staticpod.Decode([]byte(manifest), staticpod.Origin{
		Source: source, Node: origin.Node, Path: origin.Path,
		Allowed: privilege.Allowed{HostNetwork: only, HostPID: only, HostIPC: only, Privileged: only},
	})
}

func TestPrivilegesThatTheSourceMayNotGiveAreRefusedByField(t *testing.T) {
	if got := from("file", greedy); len(got.Pods) != 1 || len(got.Problems) != 0 {
		t.Fatalf("from the source that may: %d pods, problems %v, want 1 and none", len(got.Pods), got.Problems)
	}
	got := from("http", greedy)
	if len(got.Pods) != 0 || got.Incomplete {
		t.Errorf("%d pods, incomplete %v; want none, of a manifest that can be told", len(got.Pods), got.Incomplete)
	}
	var reported []string
	for _, p := range got.Problems {
		message, _, _ := strings.Cut(p.Message, " must not")
		reported = append(reported, p.Pod+" "+p.Field+" "+message)
	}
	const pod, because = "default/web-node-1 ", `: Forbidden: a pod of the source "http"`
	if diff := cmp.Diff([]string{
		pod + "spec.hostNetwork line 11" + because,
		pod + "spec.hostPID line 12" + because,
		pod + "spec.hostIPC line 13" + because,
		pod + "spec.initContainers[0].securityContext.privileged line 10" + because,
		pod + "spec.containers[0].securityContext.privileged line 9" + because,
	}, reported); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

func TestARefusedPodKeepsItsLastGoodVersionAndHidesNoOther(t *testing.T) {
	before := from("http", web)
	other := strings.Replace(web, "name: web", "name: other", 1)
	after := from("http", greedy+"---\n"+other)
	held, kept := after.WithLastGood(staticpod.Held{Pods: before.Pods})
	pods := held.Pods
	if len(pods) != 2 || pods[0].Name != "other-node-1" || pods[1] != before.Pods[0] {
		t.Fatalf("pods %v, want the other one and the last good version", pods)
	}
	if got := kept.Outcome(
		after.Problems[0],
		"the answer",
	); got != "; the last good version of the pod is kept: mend the answer" {
		t.Errorf("outcome %q, want %q", got, "; the last good version of the pod is kept: mend the answer")
	}
}
