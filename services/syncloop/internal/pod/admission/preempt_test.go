package admission_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// asking returns a pod with one container with the given requests. If guaranteed is true, its limits are the same.
func asking(name, cpu, memory string, guaranteed bool) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
	if cpu != "" {
		list := v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse(memory)}
		p.Spec.Containers[0].Resources.Requests = list
		if guaranteed {
			p.Spec.Containers[0].Resources.Limits = list
		}
	}
	return p
}

func TestWhatCountsOfAPodThatMayBeEnded(t *testing.T) {
	sandbox := v1.ResourceList{v1.ResourceCPU: resource.MustParse("50m"), v1.ResourceMemory: resource.MustParse("16Mi")}
	plain, overhead, nothing, whole := asking("plain", "200m", "100Mi", false), asking("overhead", "200m", "100Mi", false), asking("nothing", "", "", false), asking("whole", "200m", "100Mi", false)
	overhead.Spec.Overhead, nothing.Spec.Overhead, whole.Spec.Overhead = sandbox, sandbox, sandbox
	whole.Spec.Resources = &v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("30Mi")},
	}
	for _, test := range []struct {
		pod         *v1.Pod
		cpu, memory string
	}{{plain, "200m", "100Mi"}, {overhead, "250m", "116Mi"}, {nothing, "0", "0"}, {whole, "0", "46Mi"}} {
		cpu, memory := admission.Counted(test.pod, v1.ResourceCPU), admission.Counted(test.pod, v1.ResourceMemory)
		if cpu.Cmp(resource.MustParse(test.cpu)) != 0 || memory.Cmp(resource.MustParse(test.memory)) != 0 {
			t.Errorf("%s: %s of cpu and %s of memory, want %s and %s", test.pod.Name, &cpu, &memory, test.cpu, test.memory)
		}
	}
}

func TestPreempt(t *testing.T) {
	critical := asking("critical", "1", "1Gi", false)
	critical.Spec.Priority = ptr.To[int32](2_000_000_001)
	best, small, large, whole := asking("best", "", "", false), asking("small", "200m", "100Mi", false), asking("large", "2", "4Gi", false), asking("whole", "1", "1Gi", true)
	cpu := func(milli int64) admission.Shortage {
		return admission.Shortage{Resource: v1.ResourceCPU, Amount: milli}
	}
	memory := admission.Shortage{Resource: v1.ResourceMemory, Amount: 50 << 20}
	for name, test := range map[string]struct {
		short  []admission.Shortage
		others []admission.Victim
		want   string
		ok     bool
	}{
		"one that frees just enough":               {[]admission.Shortage{cpu(150)}, []admission.Victim{{Pod: large}, {Pod: small}, {Pod: best}}, "small", true},
		"one large instead of several":             {[]admission.Shortage{cpu(1500)}, []admission.Victim{{Pod: small}, {Pod: large}, {Pod: best}}, "large", true},
		"guaranteed ones only when there is need":  {[]admission.Shortage{cpu(150)}, []admission.Victim{{Pod: whole}, {Pod: large}}, "large", true},
		"and then no more of the others than need": {[]admission.Shortage{cpu(1100)}, []admission.Victim{{Pod: whole}, {Pod: small}}, "small whole", true},
		"for want of several things":               {[]admission.Shortage{cpu(150), memory}, []admission.Victim{{Pod: best}, {Pod: small}}, "small", true},
		"a place among the pods is anybody's":      {[]admission.Shortage{{Resource: v1.ResourcePods, Amount: 1}}, []admission.Victim{{Pod: small}, {Pod: best}}, "best", true},
		"nobody when all are not enough":           {[]admission.Shortage{cpu(9000)}, []admission.Victim{{Pod: small}, {Pod: large}}, "", false},
		"nobody who is as important":               {[]admission.Shortage{cpu(150)}, []admission.Victim{{Pod: small, Critical: true}}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			victims, ok := admission.Preempt(critical, test.short, test.others)
			var got []string
			for _, victim := range victims {
				got = append(got, victim.Name)
			}
			if strings.Join(got, " ") != test.want || ok != test.ok {
				t.Errorf("got %q, %t, want %q, %t", got, ok, test.want, test.ok)
			}
		})
	}
	lesser := asking("lesser", "1", "1Gi", false)
	lesser.Spec.Priority = ptr.To[int32](2_000_000_000)
	if victims, ok := admission.Preempt(critical, []admission.Shortage{cpu(10)}, []admission.Victim{
		{Pod: lesser, Critical: true},
	}); !ok || len(victims) != 1 {
		t.Errorf("a critical pod of less priority: %v, %t", victims, ok)
	}
}

func TestPodsUnderPressure(t *testing.T) {
	tolerant := asking("tolerant", "", "", false)
	tolerant.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists}}
	const memory, disk, processes = v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure
	for name, test := range map[string]struct {
		pod      *v1.Pod
		critical bool
		pressing []v1.NodeConditionType
		want     string
	}{
		"nothing presses":                            {asking("a", "", "", false), false, nil, ""},
		"memory keeps away what asks for nothing":    {asking("a", "", "", false), false, []v1.NodeConditionType{memory}, "The node had condition: [MemoryPressure]. "},
		"unless it tolerates that":                   {tolerant, false, []v1.NodeConditionType{memory}, ""},
		"and not what asks for some":                 {asking("a", "100m", "1Mi", false), false, []v1.NodeConditionType{memory}, ""},
		"disk keeps away everything":                 {asking("a", "100m", "1Mi", false), false, []v1.NodeConditionType{disk}, "The node had condition: [DiskPressure]. "},
		"so do processes, and nobody tolerates both": {tolerant, false, []v1.NodeConditionType{memory, processes}, "The node had condition: [MemoryPressure PIDPressure]. "},
		"but not what the node cannot do without":    {asking("a", "", "", false), true, []v1.NodeConditionType{memory, disk, processes}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := &v1.Node{}
			node.Status.Conditions = []v1.NodeCondition{
				{Type: v1.NodeReady, Status: v1.ConditionTrue}, {Type: disk, Status: v1.ConditionUnknown},
			}
			for _, kind := range test.pressing {
				node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: kind, Status: v1.ConditionTrue})
			}
			refusal := admission.Check(admission.Request{Pod: test.pod, Critical: test.critical, Node: node})
			switch {
			case refusal == nil && test.want == "":
			case refusal == nil || refusal.Reason != "Evicted" || refusal.Message != test.want:
				t.Errorf("got %+v, want %q", refusal, test.want)
			}
		})
	}
}

// TestForACriticalPodAnyOtherReasonComesFirst checks that pods are preempted only if the critical pod then fits.
func TestForACriticalPodAnyOtherReasonComesFirst(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	node.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Gi"), v1.ResourcePods: resource.MustParse("1")}
	request := admission.Request{Pod: asking("critical", "2", "1Gi", false), Critical: true, Node: node, Others: []*v1.Pod{asking("other", "500m", "512Mi", false)}}
	refusal := admission.Check(request)
	if refusal == nil || refusal.Reason != "OutOfpods" || len(refusal.Short) != 3 || refusal.Short[1] != (admission.Shortage{Resource: "cpu", Amount: 1500}) ||
		refusal.Short[2] != (admission.Shortage{Resource: "memory", Amount: 512 << 20}) {
		t.Errorf("Check() = %+v, want a value, Reason %q, len(Short) 3, Short[1] %v and Short[2] %v",
			refusal, "OutOfpods", admission.Shortage{Resource: "cpu", Amount: 1500},
			admission.Shortage{Resource: "memory", Amount: 512 << 20})
	}
	request.Pod.Spec.NodeName = "node-2"
	if refusal := admission.Check(request); refusal == nil || refusal.Reason != "NodeName" || refusal.Short != nil {
		t.Errorf("of another node: %+v", refusal)
	}
}

func TestIsCritical(t *testing.T) {
	plain, mirror, important := asking("a", "", "", false), asking("b", "", "", false), asking("c", "", "", false)
	mirror.Annotations = map[string]string{podset.AnnotationMirror: "x"}
	important.Spec.Priority = ptr.To[int32](2_000_000_000)
	if admission.IsCritical(plain, false) || !admission.IsCritical(plain, true) || !admission.IsCritical(mirror, false) ||
		!admission.IsCritical(important, false) {
		t.Error("critical are static pods, mirror pods and those of a system priority, and no others")
	}
}
