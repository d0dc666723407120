package show

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestStatusOfAPod(t *testing.T) {
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	ended := func(code int32, reason string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	runs := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	// initializing returns a pod whose init containers are in the given states.
	initializing := func(states ...v1.ContainerState) *v1.Pod {
		p := pod("default", "p", "main")
		p.Status.Phase = v1.PodPending
		p.Status.Conditions = nil
		p.Status.ContainerStatuses[0] = v1.ContainerStatus{Name: "main", State: waiting("PodInitializing")}
		for _, state := range states {
			p.Spec.InitContainers = append(p.Spec.InitContainers, v1.Container{Name: "init"})
			p.Status.InitContainerStatuses = append(
				p.Status.InitContainerStatuses,
				v1.ContainerStatus{Name: "init", State: state, RestartCount: 1},
			)
		}
		return p
	}
	main := func(states ...v1.ContainerState) *v1.Pod {
		p := pod("default", "p")
		for _, state := range states {
			p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: "c"})
			p.Status.ContainerStatuses = append(
				p.Status.ContainerStatuses,
				v1.ContainerStatus{Name: "c", State: state, Ready: state.Running != nil, RestartCount: 2},
			)
		}
		return p
	}
	change := func(p *v1.Pod, how func(*v1.Pod)) *v1.Pod {
		how(p)
		return p
	}
	for name, test := range map[string]struct {
		pod         *v1.Pod
		terminating bool
		want        summary
	}{
		"not known since": {pod: change(main(runs), unknownSince(ago(time.Minute))), terminating: true,
			want: summary{status: "Unknown", ready: 1, total: 1, restarts: 2, unknownSince: ago(time.Minute)}},
		"not known, and has ended": {pod: change(main(ended(0, "Completed")), func(p *v1.Pod) {
			unknownSince(ago(time.Minute))(p)
			p.Status.Phase = v1.PodSucceeded
		}), want: summary{status: "Completed", total: 1, restarts: 2}},
		"nothing known":           {pod: &v1.Pod{Spec: v1.PodSpec{Containers: make([]v1.Container, 2)}}, want: summary{status: "Pending", total: 2}},
		"first init":              {pod: initializing(runs, waiting("PodInitializing")), want: summary{status: "Init:0/2", total: 1, restarts: 1}},
		"second init":             {pod: initializing(ended(0, "Completed"), runs), want: summary{status: "Init:1/2", total: 1, restarts: 2}},
		"init fails":              {pod: initializing(ended(1, "Error")), want: summary{status: "Init:Error", total: 1, restarts: 1}},
		"init fails, no reason":   {pod: initializing(ended(3, "")), want: summary{status: "Init:ExitCode:3", total: 1, restarts: 1}},
		"init backs off":          {pod: initializing(waiting("CrashLoopBackOff")), want: summary{status: "Init:CrashLoopBackOff", total: 1, restarts: 1}},
		"init is done":            {pod: initializing(ended(0, "Completed")), want: summary{status: "PodInitializing", total: 1}},
		"creating":                {pod: main(waiting("ContainerCreating")), want: summary{status: "ContainerCreating", total: 1, restarts: 2}},
		"running":                 {pod: main(runs, runs), want: summary{status: "Running", ready: 2, total: 2, restarts: 4}},
		"one backs off":           {pod: main(waiting("CrashLoopBackOff"), runs), want: summary{status: "CrashLoopBackOff", ready: 1, total: 2, restarts: 4}},
		"one failed":              {pod: main(ended(1, "Error")), want: summary{status: "Error", total: 1, restarts: 2}},
		"killed, no reason":       {pod: main(v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Signal: 9, ExitCode: 137}}), want: summary{status: "Signal:9", total: 1, restarts: 2}},
		"completed":               {pod: change(main(ended(0, "Completed")), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }), terminating: true, want: summary{status: "Completed", total: 1, restarts: 2}},
		"one completed, ready":    {pod: main(ended(0, "Completed"), runs), want: summary{status: "Running", ready: 1, total: 2, restarts: 4}},
		"one completed, unready":  {pod: change(main(ended(0, "Completed"), runs), func(p *v1.Pod) { p.Status.Conditions[1].Status = v1.ConditionFalse }), want: summary{status: "NotReady", ready: 1, total: 2, restarts: 4}},
		"evicted":                 {pod: change(main(), func(p *v1.Pod) { p.Status.Phase, p.Status.Reason = v1.PodFailed, "Evicted" }), want: summary{status: "Evicted"}},
		"being stopped":           {pod: main(runs), terminating: true, want: summary{status: "Terminating", ready: 1, total: 1, restarts: 2}},
		"to be deleted by others": {pod: change(main(runs), func(p *v1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }), want: summary{status: "Terminating", ready: 1, total: 1, restarts: 2}},
		"sidecar": {
			pod: change(main(runs), func(p *v1.Pod) {
				p.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: ptr.To(v1.ContainerRestartPolicyAlways)}, {Name: "init"}}
				p.Status.InitContainerStatuses = []v1.ContainerStatus{
					{Name: "side", State: runs, Ready: true, Started: ptr.To(true), RestartCount: 3, LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{FinishedAt: metav1.NewTime(ago(time.Hour))}}},
					{Name: "init", State: ended(0, "Completed"), RestartCount: 7},
				}
			}),
			want: summary{status: "Running", ready: 2, total: 2, restarts: 5, lastRestart: ago(time.Hour)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := summarize(test.pod, test.terminating); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
