package staticpod

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

// Held is the content of a manifest.
type Held struct {
	Pods    []*v1.Pod
	Objects []*apiobject.Object
}

// Empty reports whether there are neither pods nor objects.
func (h Held) Empty() bool { return len(h.Pods) == 0 && len(h.Objects) == 0 }

// Len returns the number of pods and objects.
func (h Held) Len() int { return len(h.Pods) + len(h.Objects) }

// Kept is the set of the pods and objects whose last good version replaces an invalid one: the names of pods, and of
// objects in the form of Problem.Object.
type Kept map[string]bool

// WithLastGood returns the effective content of a manifest, and what is kept from its last good version: the pods and
// objects whose new version is invalid, and everything else if the manifest does not tell what its invalid parts are.
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

// about returns the name of the pod or object with the problem, in the form of Kept; empty if unknown.
func (p Problem) about() string {
	if p.Object != "" {
		return p.Object
	}
	return p.Pod
}

// Outcome returns the consequence of a problem and the remedy, to be appended to the problem's message. where describes
// the place of the manifest: "the file", "the answer".
func (k Kept) Outcome(p Problem, where string) string {
	subject := "the pod"
	if p.Object != "" {
		subject = "it"
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
		return "; " + subject + " is left out: mend " + where
	}
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
