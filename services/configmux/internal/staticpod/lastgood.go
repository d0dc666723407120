package staticpod

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// Held is what a manifest stands for.
type Held struct {
	Pods    []*v1.Pod
	Objects []*apiobject.Object
}

// Empty reports whether it stands for nothing.
func (h Held) Empty() bool { return len(h.Pods) == 0 && len(h.Objects) == 0 }

// Len is how many pods and objects there are.
func (h Held) Len() int { return len(h.Pods) + len(h.Objects) }

// Kept has what has its last good version in the place of what is wrong now: the names of pods, and of objects as
// Problem.Object has them.
type Kept map[string]bool

// WithLastGood returns what a manifest stands for, and what of it is kept from its last good version: that whose new version
// is bad, and all else of before when the manifest leaves open what its bad parts are.
func (r Result) WithLastGood(known Held) (Held, Kept) {
	now := Held{Pods: r.Pods, Objects: r.Objects}
	if known.Empty() || len(r.Problems) == 0 {
		return now, nil
	}
	good, bad := map[string]bool{}, map[string]bool{}
	for _, pod := range r.Pods {
		good[nameOf(pod).String()] = true
	}
	for _, object := range r.Objects {
		good[object.Key().String()] = true
	}
	for _, p := range r.Problems {
		bad[p.about()] = true
	}
	kept := Kept{}
	keeps := func(name string) bool {
		if good[name] || !r.Incomplete && !bad[name] {
			return false
		}
		kept[name] = true
		return true
	}
	now.Pods, now.Objects = slices.Clip(now.Pods), slices.Clip(now.Objects)
	for _, pod := range known.Pods {
		if keeps(nameOf(pod).String()) {
			now.Pods = append(now.Pods, pod)
		}
	}
	for _, object := range known.Objects {
		if keeps(object.Key().String()) {
			now.Objects = append(now.Objects, object)
		}
	}
	return now, kept
}

// about is what a problem is about, as Kept names it; empty when that is not known.
func (p Problem) about() string {
	if p.Object != "" {
		return p.Object
	}
	return p.Pod
}

// Outcome says what became of what a problem is about, and what to do. It is to follow the problem's message; where is what
// the manifest was read from, in words: "the file", "the answer".
func (k Kept) Outcome(p Problem, where string) string {
	what := "the pod"
	if p.Object != "" {
		what = "it"
	}
	switch {
	case p.about() == "" && len(k) > 0:
		return fmt.Sprintf("; the last good version of what was in %s is kept: mend %[1]s", where)
	case p.about() == "":
		return "; it is left out: mend " + where
	case k[p.about()] && p.Object != "":
		return "; its last good version is kept: mend " + where
	case k[p.about()]:
		return "; the last good version of the pod is kept: mend " + where
	default:
		return "; " + what + " is left out: mend " + where
	}
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
