package oracle

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/quartet-node/quartet/internal/podset"
)

// difference is one way in which our merge is meant to differ from the kubelet's. It is told by what has to be done to
// what the kubelet is given, or says, so that it is as ours: differences that meet in one pod add up by themselves.
type difference struct {
	name, reason string
	// given changes the input of the kubelet; h is its earlier input.
	given func(h history, s *step)
	// said changes the output of both.
	said func(theirs, ours []message) ([]message, []message)
	// examples are sequences of steps that show the difference, each by itself.
	examples map[string][]step
}

// differences are all that there are, in the order in which they are made up for.
func differences() []difference { return slices.Concat(leftOut(), meantTheSame(), written()) }

// leftOut returns differences of pods that the kubelet accepts and this merge does not.
func leftOut() []difference {
	return []difference{
		{
			name:   "repeated UIDs",
			reason: "our sources leave out a repeated UID and report it; the kubelet adds one pod twice, and then holds the last",
			given: func(_ history, s *step) {
				if s.op == podset.Remove {
					return
				}
				_, rejected := podset.Filter(s.pods)
				repeated := map[int]bool{}
				for _, r := range rejected {
					repeated[r.Index] = r.Field == "metadata.uid"
				}
				s.keep(func(i int, _ *v1.Pod) bool { return !repeated[i] })
			},
			examples: map[string][]step{"one set": {set("file", pod("1"), pod("1", renamed))}},
		},
		{
			name: "a UID of another source",
			reason: "a pod has one worker, by its UID: the first source keeps it and the other's pod is left out and reported; " +
				"the kubelet takes both and lets them overwrite each other",
			given: func(h history, s *step) {
				// The names that are left out as repeated are found before, by the source.
				taken := map[types.NamespacedName]bool{}
				s.keep(func(_ int, p *v1.Pod) bool {
					name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
					if s.op != podset.Remove && h.elsewhere(s.source, p.UID) {
						taken[name] = true
					}
					return !taken[name]
				})
			},
			examples: map[string][]step{"two sets": {set("file", pod("1")), set("api", pod("1"))}},
		},
	}
}

// meantTheSame returns differences of updates that only the kubelet sends.
func meantTheSame() []difference {
	return []difference{
		{
			name: "config.hash",
			reason: "the hash is of the file or URL, and is the UID of a static pod: it says nothing that the UID or the spec does not; " +
				"the kubelet takes another hash of an equal pod for an update",
			given: func(_ history, s *step) {
				s.drop(func(key string) bool { return key == kubetypes.ConfigHashAnnotationKey })
			},
			examples: map[string][]step{
				"another hash": {set("file", pod("1")), set("file", pod("1", annotated(kubetypes.ConfigHashAnnotationKey)))},
			},
		},
		{
			name:   "annotations of this agent",
			reason: "they are for this agent alone, which sets them; a kubelet does not know them",
			given: func(_ history, s *step) {
				s.drop(func(key string) bool { return strings.HasPrefix(key, "quartet.dev/") })
			},
			examples: map[string][]step{
				"a trace": {set("file", pod("1")), set("file", pod("1", annotated("quartet.dev/traceparent")))},
			},
		},
		{
			name: "equality is semantic",
			reason: "an empty list is none, 1000m is 1, and an instant is one in any time zone: nothing is to be done; " +
				"the kubelet compares how they are written",
			given: func(h history, s *step) {
				for _, p := range s.pods {
					if held := h[s.source][p.UID]; held != nil {
						writeAs(p, held)
					}
				}
			},
			examples: map[string][]step{
				"labels":  {set("file", pod("1")), set("file", pod("1", func(p *v1.Pod) { p.Labels = map[string]string{} }))},
				"volumes": {set("file", pod("1")), set("file", pod("1", func(p *v1.Pod) { p.Spec.Volumes = []v1.Volume{} }))},
				"conditions": {
					set("file", pod("1")),
					set("file", pod("1", func(p *v1.Pod) { p.Status.Conditions = []v1.PodCondition{} })),
				},
				"quantities": {set("file", pod("1", limited("1"))), set("file", pod("1", limited("1000m")))},
				"time zones": {set("api", pod("1", ending(time.UTC))), set("api", pod("1", ending(time.FixedZone("east", 3600))))},
			},
		},
	}
}

// written returns differences in the form of a change.
func written() []difference {
	return []difference{
		{
			name:   "a pod with another name",
			reason: "a pod is told as its source gives it; the kubelet keeps the name that a UID had first",
			said: func(theirs, ours []message) ([]message, []message) {
				names := map[types.UID]*v1.Pod{}
				for _, m := range ours {
					for _, p := range m.pods {
						names[p.UID] = p
					}
				}
				for _, m := range theirs {
					for _, p := range m.pods {
						if named := names[p.UID]; named != nil {
							p.Namespace, p.Name = named.Namespace, named.Name
						}
					}
				}
				return theirs, ours
			},
			examples: map[string][]step{"and spec": {set("file", pod("1")), set("file", pod("1", renamed, limited("1")))}},
		},
		{
			name:   "the order within an operation",
			reason: "ours is that of the names, so that it is the same each time; the kubelet's is that of the source, and for removals and sets none",
			said: func(theirs, ours []message) ([]message, []message) {
				for _, m := range slices.Concat(theirs, ours) {
					slices.SortFunc(m.pods, func(a, b *v1.Pod) int {
						return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
					})
				}
				return theirs, ours
			},
			examples: map[string][]step{"two pods": {set("file", pod("2"), pod("1"))}},
		},
		{
			name:   "that a source has spoken comes last",
			reason: "the state of the source follows all of its pods, in a message of its own; the kubelet's message without pods comes before the statuses",
			said: func(theirs, ours []message) ([]message, []message) {
				slices.SortStableFunc(theirs, func(a, b message) int { return cmp.Compare(empty(a), empty(b)) })
				return theirs, ours
			},
			examples: map[string][]step{"a status before the first set": {
				{"api", podset.Add, []*v1.Pod{pod("1")}},
				set("api", pod("1", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning })),
			}},
		},
	}
}

// keep leaves out of a step the pods that are not to be kept.
func (s *step) keep(kept func(i int, p *v1.Pod) bool) {
	var pods []*v1.Pod
	for i, p := range s.pods {
		if kept(i, p) {
			pods = append(pods, p)
		}
	}
	s.pods = pods
}

// drop removes annotations from all pods of a step.
func (s *step) drop(dropped func(key string) bool) {
	for _, p := range s.pods {
		for key := range p.Annotations {
			if dropped(key) {
				delete(p.Annotations, key)
			}
		}
	}
}

// writeAs writes what is the same in two pods as it is written in the one that is held.
func writeAs(p, held *v1.Pod) {
	held = held.DeepCopy()
	if equality.Semantic.DeepEqual(p.Spec, held.Spec) {
		p.Spec = held.Spec
	}
	if equality.Semantic.DeepEqual(p.Status, held.Status) {
		p.Status = held.Status
	}
	if equality.Semantic.DeepEqual(p.Labels, held.Labels) {
		p.Labels = held.Labels
	}
	if equality.Semantic.DeepEqual(p.DeletionTimestamp, held.DeletionTimestamp) {
		p.DeletionTimestamp = held.DeletionTimestamp
	}
}

// empty is 1 for a message without pods, which only says that its source has spoken, and 0 for others.
func empty(m message) int {
	if m.op == "ADD" && len(m.pods) == 0 {
		return 1
	}
	return 0
}

func set(source string, pods ...*v1.Pod) step { return step{source: source, pods: pods} }

// pod returns a pod with a UID, changed.
func pod(uid types.UID, changes ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod-" + string(uid), UID: uid},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "image:1"}}},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

func renamed(p *v1.Pod) { p.Name = "another" }

func annotated(key string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Annotations = map[string]string{key: "x"} }
}

func limited(cpu string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
	}
}

func ending(zone *time.Location) func(*v1.Pod) {
	return func(p *v1.Pod) {
		at := metav1.NewTime(time.Unix(1000, 0).In(zone))
		p.DeletionTimestamp = &at
	}
}
