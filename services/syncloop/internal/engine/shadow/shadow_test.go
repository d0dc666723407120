package shadow

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// sourceFile is the source of the pods.
const sourceFile = "file"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a node with a syncloop that runs, as far as a shadow sees it.
type world struct {
	t       *testing.T
	runtime *fakenode.Node
	desired *stream.Level[*loop.Desired]
	node    *stream.Level[*nodev1.Node]
	pods    *stream.Level[*enginev1.Pod]
	events  *stream.Level[*enginev1.PodEvent]

	mu    sync.Mutex
	found []Difference
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, runtime: fakenode.New(), desired: stream.NewLevel[*loop.Desired](stream.Config{}),
		node: stream.NewLevel[*nodev1.Node](stream.Config{}), pods: stream.NewLevel[*enginev1.Pod](stream.Config{}),
		events: stream.NewLevel[*enginev1.PodEvent](stream.Config{}),
	}
	w.desired.Put("source/file", &loop.Desired{Source: sourceFile, Ready: true})
	w.setNode(10)
	return w
}

func (w *world) setNode(pods int64) {
	node := &v1.Node{Status: v1.NodeStatus{Capacity: v1.ResourceList{}, Allocatable: v1.ResourceList{
		v1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI), v1.ResourceCPU: resource.MustParse("4"),
	}}}
	node.Name = "node"
	data, err := node.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	w.node.Put("node", &nodev1.Node{Node: data})
}

// want makes a source name a pod.
func (w *world) want(uid string) *v1.Pod {
	pod := fakenode.Pod(uid, "pod-"+uid, v1.RestartPolicyAlways)
	w.desired.Put(uid, &loop.Desired{Pod: pod, Source: sourceFile})
	return pod
}

// run makes the syncloop that runs start a pod, and publish a status.
func (w *world) run(pod *v1.Pod) {
	w.runtime.Run(pod)
	w.publish(pod, w.runtime.Container(pod.UID))
}

func (w *world) publish(pod *v1.Pod, id string) {
	status := v1.PodStatus{Phase: v1.PodRunning}
	for _, c := range []v1.PodConditionType{
		v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady,
	} {
		status.Conditions = append(status.Conditions, v1.PodCondition{Type: c, Status: v1.ConditionTrue})
	}
	started := true
	status.ContainerStatuses = []v1.ContainerStatus{{
		Name: "main", ContainerID: "containerd://" + id, Ready: true, Started: &started,
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}}
	shown := pod.DeepCopy()
	shown.Status = status
	data, err := shown.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	w.pods.Put(string(pod.UID), &enginev1.Pod{
		Pod: data, Source: sourceFile, WorkerState: enginev1.WorkerState_WORKER_STATE_SYNCING,
	})
}

// follow runs a shadow while do runs, and returns its summary.
func (w *world) follow(maxPods int64, do func()) Summary {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	began := make(chan struct{})
	cfg := Config{
		Desired: w.desired, Events: w.runtime.Events, Node: w.node, MaxPods: maxPods, Pods: w.pods, PodEvents: w.events,
		Health: w.runtime.Health, NodeName: "node", Dir: w.t.TempDir(), Resync: time.Minute, Wait: 10 * time.Second,
		Privileges: privilege.Allowed{}, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Started: func() { close(began) },
		Report: func(d Difference) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.found = append(w.found, d)
		},
	}
	var summary Summary
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		summary, err = Run(ctx, cfg)
	}()
	<-began
	do()
	cancel()
	<-done
	if err != nil {
		w.t.Errorf("Run() failed: %v", err)
	}
	w.desired.Close()
	w.node.Close()
	w.pods.Close()
	w.events.Close()
	w.runtime.Events.Close()
	return summary
}

// settle lets enough time pass for every difference to be found.
func settle() { time.Sleep(time.Minute) }

func TestThereIsNoDifferenceToASyncloopThatDoesTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.want("before")
		w.run(before)
		summary := w.follow(10, func() {
			next := w.want("next")
			time.Sleep(time.Second)
			w.run(next)
			time.Sleep(time.Minute)
			w.runtime.Exit("next", 1)
			time.Sleep(10 * time.Second)
			w.run(next) // the fake counts no restart
			settle()
		})
		for _, d := range w.found {
			if d.Action != Status { // the status of the fake is not that of a restarted container
				t.Errorf("%+v is a difference, want none", d)
			}
		}
		if summary.Pods != 2 || !summary.Compared || summary.Decisions[CreateSandbox] != 1 ||
			summary.Decisions[StartContainer] < 2 {
			t.Errorf("the summary is %+v, want two pods, one sandbox, and two starts", summary)
		}
		if calls := w.runtime.Calls(); len(calls) > 0 {
			t.Errorf("the shadow has called the runtime: %v", calls)
		}
	})
}

func TestAShadowWithFewerPodsWouldRefuseOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.want("before")
		w.run(before)
		summary := w.follow(1, func() {
			next := w.want("next")
			time.Sleep(time.Second)
			w.run(next)
			settle()
		})
		if len(w.found) != 1 || w.found[0].Action != Admit || w.found[0].Pod != "pod-next" ||
			!strings.HasPrefix(w.found[0].Shadow, "refuse it: OutOfpods: ") || w.found[0].Running != "run it" {
			t.Errorf("the differences are %+v, want one: a refusal with OutOfpods", w.found)
		}
		if summary.Total() != 1 || summary.Differences[Admit] != 1 {
			t.Errorf("the summary is %+v, want one difference", summary)
		}
	})
}

func TestAPodThatTheOtherDoesNotEndIsADifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		before := w.want("before")
		w.run(before)
		w.follow(10, func() {
			settle()
			w.desired.Delete("before")
			settle()
		})
		if len(w.found) != 1 || w.found[0].Action != EndPod || w.found[0].Running != "run it" {
			t.Errorf("the differences are %+v, want one: an end", w.found)
		}
		if names := w.runtime.Running(); len(names) != 1 {
			t.Errorf("%v run, want the pod that nobody has ended", names)
		}
	})
}

func TestTheOutputHasColumnsAndJSON(t *testing.T) {
	d := Difference{
		Time: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), Namespace: "default", Pod: "web", UID: "u", Action: Admit,
		Shadow: "refuse it: OutOfpods: too many", Running: "run it",
	}
	s := Summary{
		Pods: 2, Compared: true, Decisions: map[Action]int{StartContainer: 2, CreateSandbox: 1},
		Differences: map[Action]int{Admit: 1},
	}
	var text, lines bytes.Buffer
	for printer, want := range map[*Printer]struct {
		out  *bytes.Buffer
		text string
	}{
		NewPrinter(&text, false): {&text, "TIME      POD                                   ACTION   " +
			"SHADOW                                                RUNNING\n" +
			"12:00:00  default/web                           admit    " +
			"refuse it: OutOfpods: too many                        run it\n" +
			"Compared 2 pods. Decisions: 3 (sandbox 1, start 2). Differences: 1 (admit 1). Evictions followed: 0.\n"},
		NewPrinter(&lines, true): {&lines, `{"difference":{"time":"2026-05-01T12:00:00Z","namespace":"default","pod":"web",` +
			`"uid":"u","action":"admit","shadow":"refuse it: OutOfpods: too many","running":"run it"}}` + "\n" +
			`{"summary":{"pods":2,"decisions":{"sandbox":1,"start":2},"differences":{"admit":1},"evictionsFollowed":0,` +
			`"compared":true}}` + "\n"},
	} {
		if err := printer.Difference(d); err != nil {
			t.Fatal(err)
		}
		if err := printer.Summary(s); err != nil {
			t.Fatal(err)
		}
		if got := want.out.String(); got != want.text {
			t.Errorf("the output is\n%s\nwant\n%s", got, want.text)
		}
	}
}
