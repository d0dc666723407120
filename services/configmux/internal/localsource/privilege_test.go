package localsource

import (
	"errors"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
)

func TestAnAppliedPodThatAsksForMoreThanItMayIsInvalid(t *testing.T) {
	r := newRig(t)
	r.start()
	r.apply(pod("a", "i:1"))
	greedy, yes := pod("a", "i:2"), true
	greedy.Spec.HostNetwork = true
	greedy.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: &yes}
	_, err := r.Apply(t.Context(), greedy, false)
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("applied: %v, want an InvalidError", err)
	}
	var fields []string
	for _, p := range invalid.Problems {
		fields = append(fields, p.Field)
	}
	if got := strings.Join(fields, " "); got != "spec.hostNetwork spec.containers[0].securityContext.privileged" {
		t.Errorf("fields %q, want %q", got, "spec.hostNetwork spec.containers[0].securityContext.privileged")
	}
	if op := r.apply(pod("a", "i:1")); op != podset.None {
		t.Errorf("the pod of before is %s, want it as it was", op)
	}
}

// Pods that a stricter configuration does not allow are left out, and their files are kept for another try.
func TestAStricterConfigurationLeavesAppliedPodsOut(t *testing.T) {
	r := newRig(t)
	r.allowed = privilege.Allowed{HostNetwork: []string{Name}}
	r.start()
	networked := pod("a", "i:1")
	networked.Spec.HostNetwork = true
	r.apply(networked)
	r.apply(pod("b", "i:1"))
	allowed := r.allowed
	r.allowed = privilege.Allowed{}
	reading := r.restart()
	expect(t, reading, map[string]string{"default/b-node": "i:1"})
	if len(reading.Errors) != 1 || reading.Errors[0].Pod != "default/a-node" ||
		reading.Errors[0].Field != "spec.hostNetwork" {
		t.Errorf("errors %+v, want exactly one, reading.Errors[0].Pod %q and reading.Errors[0].Field %q",
			reading.Errors, "default/a-node", "spec.hostNetwork")
	}
	r.allowed = allowed
	expect(t, r.restart(), map[string]string{"default/a-node": "i:1", "default/b-node": "i:1"})
}

// A pod that was read from a node has an agent's annotations. It can be applied, and again with later annotations.
func TestAnnotationsOfAnAgentAreNoPartOfWhatIsApplied(t *testing.T) {
	r := newRig(t)
	r.start()
	r.apply(pod("a", "i:1"))
	for _, seen := range []string{"2026-05-01T12:00:00Z", "2026-05-01T12:00:01Z"} {
		noted := pod("a", "i:1")
		noted.Annotations = map[string]string{
			podset.AnnotationSeen:   seen,
			podset.AnnotationMirror: seen,
			podset.AnnotationHash:   seen,
			podset.AnnotationSource: "api",
			"quartet.dev/x":         "y",
		}
		if op := r.apply(noted); op != podset.None {
			t.Errorf("applying it as seen at %s is %s, want no change", seen, op)
		}
	}
	data, err := os.ReadFile(r.pathOf(types.NamespacedName{Namespace: "default", Name: "a"}))
	must(t, err)
	if strings.Contains(string(data), "annotations") {
		t.Errorf("kept: %s, want text without %q", data, "annotations")
	}
}
