package staticpod

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kept has the pods whose last good version stands in for what is wrong now.
type Kept map[types.NamespacedName]bool

// WithLastGood returns the pods that a manifest stands for, and which of them are kept from its last good version: those
// whose new version is bad, and all others of before when the manifest leaves open which pods its bad parts are.
func (r Result) WithLastGood(known []*v1.Pod) ([]*v1.Pod, Kept) {
	if len(known) == 0 || len(r.Problems) == 0 {
		return r.Pods, nil
	}
	good := make(map[types.NamespacedName]bool, len(r.Pods))
	for _, pod := range r.Pods {
		good[nameOf(pod)] = true
	}
	bad := make(map[string]bool, len(r.Problems))
	for _, p := range r.Problems {
		bad[p.Pod] = true
	}
	pods, kept := r.Pods, Kept{}
	for _, pod := range known {
		name := nameOf(pod)
		if !good[name] && (r.Incomplete || bad[name.String()]) {
			pods, kept[name] = append(pods, pod), true
		}
	}
	return pods, kept
}

// Outcome says what became of the pod of a problem, and what to do. It is to follow the problem's message; where is what
// the manifest was read from, in words: "the file", "the answer".
func (k Kept) Outcome(p Problem, where string) string {
	switch {
	case p.Pod == "" && len(k) > 0:
		return fmt.Sprintf("; the last good version of what was in %s is kept: mend %[1]s", where)
	case p.Pod == "":
		return "; it is left out: mend " + where
	}
	for name := range k {
		if name.String() == p.Pod {
			return "; the last good version of the pod is kept: mend " + where
		}
	}
	return "; the pod is left out: mend " + where
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
