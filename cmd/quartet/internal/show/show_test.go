package show

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// pod returns a pod with running, ready containers.
func pod(namespace, name string, containers ...string) *v1.Pod {
	start := metav1.NewTime(ago(2 * time.Hour))
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name)},
		Spec:       v1.PodSpec{NodeName: "node-1"},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.88.0.7", StartTime: &start, Conditions: []v1.PodCondition{
			{Type: v1.PodInitialized, Status: v1.ConditionTrue}, {Type: v1.PodReady, Status: v1.ConditionTrue},
		}},
	}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: c})
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name: c, Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: start}},
		})
	}
	return p
}

func (n *node) putPod(p *v1.Pod, source string, worker enginev1.WorkerState) {
	n.t.Helper()
	data, err := p.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	// The key orders the list; syncloop itself sorts by name.
	n.engine.pods.Put(string(p.UID), &enginev1.Pod{Pod: data, Source: source, WorkerState: worker})
}

const (
	syncing     = enginev1.WorkerState_WORKER_STATE_SYNCING
	terminating = enginev1.WorkerState_WORKER_STATE_TERMINATING
)

// putPods adds a pod of every kind to the node.
func (n *node) putPods() {
	n.putPod(pod("default", "hello-node-1", "web", "sidecar"), "file", syncing)
	crash := pod("default", "crash-node-1", "main")
	crash.Status.ContainerStatuses[0] = v1.ContainerStatus{
		Name:         "main",
		RestartCount: 7,
		State:        v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: v1.ContainerState{
			Terminated: &v1.ContainerStateTerminated{ExitCode: 1, FinishedAt: metav1.NewTime(ago(80 * time.Second))},
		},
	}
	n.putPod(crash, "file", syncing)
	going := pod("kube-system", "going-node-1", "main")
	n.putPod(going, "file", terminating)
	begun := pod("default", "begun-node-1", "main")
	begun.Status = v1.PodStatus{Phase: v1.PodPending}
	n.putPod(begun, "", syncing)
}

func TestGetPods(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	if got := n.must("get", "pods"); got != "There are no pods on this node.\n" {
		t.Errorf("without pods: %q", got)
	}
	n.putPods()
	golden(t, "pods.txt", n.must("get", "pods"))
	golden(t, "pods-wide.txt", n.must("get", "pods", "-o", "wide"))
	golden(t, "pods-name.txt", n.must("get", "po", "-o", "name"))
	golden(t, "pod.yaml", n.must("get", "pod", "begun-node-1", "-o", "yaml"))
	golden(t, "pods.json", n.must("get", "pods", "-o", "json", "begun-node-1", "kube-system/going-node-1"))
	for name, want := range map[string]string{
		"none": `there is no pod "none": there are begun-node-1, crash-node-1, hello-node-1, kube-system/going-node-1`, "going-node-1": "there is no pod",
	} {
		if _, _, err := n.run("get", "pods", name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pod %s: got %v, want %q", name, err, want)
		}
	}
}

func TestWatchPodsPrintsEachChangeOnce(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	n.putPods()
	r := n.start("get", "pods", "-w")
	r.until(r.out, "kube-system/going-node-1")
	p := pod("default", "new-node-1", "main")
	p.Status.ContainerStatuses[0].Ready = false
	n.putPod(p, "file", syncing)
	r.until(r.out, "new-node-1                 0/1")
	p.Annotations = map[string]string{"no": "column"}
	n.putPod(p, "file", syncing)
	p.Status.ContainerStatuses[0].Ready = true
	n.putPod(p, "file", syncing)
	r.until(r.out, "new-node-1                 1/1")
	n.putPod(p, "file", terminating)
	r.until(r.out, "new-node-1                 1/1     Terminating")
	n.engine.pods.Delete(string(p.UID))
	r.until(r.out, "Removed")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	golden(t, "pods-watch.txt", r.out.String())
}

// unknownSince makes the runtime not answer for a pod since a time.
func unknownSince(at time.Time) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{
			Type:               podset.ConditionRuntimeStateUnknown,
			Status:             v1.ConditionTrue,
			Reason:             "InspectionFailed",
			Message:            "the runtime has not answered for 5s",
			LastTransitionTime: metav1.NewTime(at),
		})
	}
}

// A pod for which the runtime does not answer is shown as unknown, with a time and a reason, beside its last known
// state.
func TestAPodOfUnknownStateIsReportedAsUnknown(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	well := pod("default", "hung-node-1", "main")
	n.putPod(well, "file", syncing)
	r := n.start("get", "pods", "-w")
	r.until(r.out, "Running")
	hung := well.DeepCopy()
	unknownSince(ago(35 * time.Second))(hung)
	n.putPod(hung, "file", syncing)
	r.until(r.out, "Unknown")
	golden(t, "pods-unknown.txt", n.must("get", "pods", "-o", "wide"))
	if got := n.must(
		"describe",
		"pod",
		"hung",
	); !strings.Contains(
		got,
		"unknown since Fri, 01 May 2026 11:59:25 +0000 (35s): the runtime has not answered for 5s\n",
	) {
		t.Errorf("described as\n%s\nwant text with %q",
			got, "unknown since Fri, 01 May 2026 11:59:25 +0000 (35s): the runtime has not answered for 5s\n")
	}
	if got := n.must("get", "pod", "hung", "-o", "json"); !strings.Contains(got, "quartet.dev/RuntimeStateUnknown") {
		t.Errorf("as JSON:\n%s\nwant text with %q", got, "quartet.dev/RuntimeStateUnknown")
	}
	hung.Status.Conditions[len(hung.Status.Conditions)-1].Message = "it is for another reason now"
	n.putPod(hung, "file", syncing)
	n.clock.Step(time.Minute)
	n.putPod(well, "file", syncing)
	r.untilTrue("that it runs once more", func() bool { return strings.Count(r.out.String(), "Running") == 2 })
	if got := strings.Count(r.out.String(), "Unknown (35s)"); got != 1 || strings.Count(r.out.String(), "\n") != 4 {
		t.Errorf("watched:\n%s\nwant one line with Unknown (35s), and 4 lines in total", r.out)
	}
	if got := n.must("describe", "pod", "hung"); strings.Contains(got, "unknown since") {
		t.Errorf("when it is over it is described as\n%s", got)
	}
}

func TestWatchSurvivesARestartOfTheService(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.SyncLoop)
	n.putPod(pod("default", "hello-node-1", "web"), "file", syncing)
	r := n.start("get", "pods", "--watch", "-o", "name")
	r.until(r.out, "pod/hello-node-1\n")
	stop()
	r.until(r.errOut, "syncloop is unreachable; waiting until it is reachable again\n")
	n.putPod(pod("default", "second-node-1", "web"), "file", syncing)
	n.serve(layout.SyncLoop)
	r.until(r.out, "pod/second-node-1\n")
	if got := r.errOut.String(); strings.Count(got, "\n") != 1 {
		t.Errorf("said more than one line: %q", got)
	}
}

func TestServiceThatIsNotThere(t *testing.T) {
	n := newNode(t)
	for _, args := range [][]string{{"get", "pods"}, {"get", "pods", "-w"}, {"get", "sources"}, {"get", "sources", "-w"}, {"get", "node"}, {"get", "workers"}, {"describe", "pod"}, {"events"}, {"events", "-w"}, {"logs", "x"}} {
		_, _, err := n.run(args...)
		if err == nil ||
			!strings.Contains(err.Error(), "is the node running? start it with 'quartet up --state-dir "+n.stateDir+"'") {
			t.Errorf("%v: run() error = %v, want an error with %q",
				args, err, "is the node running? start it with 'quartet up --state-dir "+n.stateDir+"'")
		}
	}
}

func TestOneServiceThatIsNotThere(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	_, _, err := n.run("events")
	if err == nil || !strings.Contains(err.Error(), "cannot reach pleg") ||
		!strings.Contains(err.Error(), "syncloop of the same node does") {
		t.Errorf("run(events) error = %v, want an error with %q and with %q",
			err, "cannot reach pleg", "syncloop of the same node does")
	}
}

// The kernel accepts connections to the socket of a hanging process, which never answers.
func TestServiceThatHangs(t *testing.T) {
	n := newNode(t)
	l, err := layout.New(n.stateDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.ServiceDir(layout.PLEG), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", l.Socket(layout.PLEG))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = n.run("events")
	if err == nil || !strings.Contains(err.Error(), "pleg does not answer on its socket") {
		t.Errorf("run(events) error = %v, want an error with %q", err, "pleg does not answer on its socket")
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
}

func TestBadFormat(t *testing.T) {
	n := newNode(t)
	for _, args := range [][]string{{"get", "pods", "-o", "xml"}, {"events", "-o", "yaml"}, {"describe", "pod", "-o", "wide"}} {
		if _, _, err := n.run(args...); err == nil || !strings.Contains(err.Error(), "must be") {
			t.Errorf("%v: run() error = %v, want an error with %q", args, err, "must be")
		}
	}
}

// poll advances the clock until a buffer of a command that polls contains a text.
func (n *node) poll(r *running, b *logbuffer.Buffer, text string) {
	n.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !strings.Contains(b.String(), text) && time.Now().Before(deadline) {
		n.clock.Step(pollInterval)
	}
	r.until(b, text)
}

func readyNode() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", CreationTimestamp: metav1.NewTime(ago(49 * time.Hour))},
		Status: v1.NodeStatus{
			Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.5"}},
			Capacity: v1.ResourceList{
				v1.ResourceCPU:    resource.MustParse("4"),
				v1.ResourceMemory: resource.MustParse("16Gi"),
				v1.ResourcePods:   resource.MustParse("110"),
			},
			NodeInfo: v1.NodeSystemInfo{
				KubeletVersion:          "v1.37.1",
				OSImage:                 "Debian",
				KernelVersion:           "6.18",
				ContainerRuntimeVersion: "containerd://2.4.2",
			},
			Conditions: []v1.NodeCondition{
				{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "enough"},
				{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
			},
		},
	}
}

func TestGetNode(t *testing.T) {
	n := newNode(t)
	n.serve(layout.NodeStatus)
	if _, _, err := n.run("get", "node"); err == nil || err.Error() != "nodestatus: no Node has been computed yet" {
		t.Errorf("before the first Node: %v", err)
	}
	node := readyNode()
	n.node.put(t, node)
	golden(t, "node.txt", n.must("get", "node"))
	golden(t, "node-wide.txt", n.must("get", "nodes", "-o", "wide"))
	golden(t, "node.yaml", n.must("get", "node", "-o", "yaml"))
	golden(t, "node-name.txt", n.must("get", "node", "-o", "name"))
	node.Status.Conditions[0].Status, node.Status.Conditions[0].Message = v1.ConditionTrue,
		"memory.available is 50Mi, 100Mi must be left"
	node.Status.Conditions[1] = v1.NodeCondition{
		Type:    v1.NodeReady,
		Status:  v1.ConditionFalse,
		Reason:  "KubeletNotReady",
		Message: "pleg cannot be reached: start it",
	}
	n.node.put(t, node)
	golden(t, "node-ill.txt", n.must("get", "node"))
}

func TestGetNodeOfACluster(t *testing.T) {
	n := newNode(t)
	n.serve(layout.NodeStatus)
	n.node.putAs(t, readyNode(), false, false)
	golden(t, "node-unregistered.txt", n.must("get", "node", "-o", "wide"))
	n.node.putAs(t, readyNode(), false, true)
	golden(t, "node-registered.txt", n.must("get", "node", "-o", "wide"))
}

func TestWatchNodeLeavesHeartbeatsOut(t *testing.T) {
	n := newNode(t)
	n.serve(layout.NodeStatus)
	node := readyNode()
	n.node.put(t, node)
	r := n.start("get", "node", "-w")
	r.until(r.out, "Ready")
	node.Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(now)
	n.node.put(t, node)
	node.Status.Conditions[1].Status = v1.ConditionFalse
	n.node.put(t, node)
	r.until(r.out, "NotReady")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	golden(t, "node-watch.txt", r.out.String())
}

const (
	running1 = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	exited   = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
)

func observed(name string, containers ...*lifecyclev1.Container) *lifecyclev1.PodStatus {
	return &lifecyclev1.PodStatus{Uid: "uid-default-" + name, Namespace: "default", Name: name, Containers: containers}
}

func logFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func line(stream, tag, text string) string {
	return "2026-05-01T11:59:00.123456789Z " + stream + " " + tag + " " + text + "\n"
}

func TestLogs(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	n.serve(layout.PLEG)
	p := pod("default", "hello-node-1", "web", "side", "late")
	p.Spec.InitContainers = []v1.Container{{Name: "setup"}}
	p.Status.ContainerStatuses[2].State = v1.ContainerState{
		Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"},
	}
	n.putPod(p, "file", syncing)
	n.putPod(pod("default", "single-node-1", "main"), "file", syncing)
	crash := pod("default", "crash-node-1", "main")
	crash.Status.ContainerStatuses[0] = v1.ContainerStatus{
		Name:  "main",
		State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: v1.ContainerState{
			Terminated: &v1.ContainerStateTerminated{ExitCode: 1, ContainerID: "containerd://c7"},
		},
	}
	n.putPod(crash, "file", syncing)
	evicted := pod("default", "evicted-node-1", "main")
	evicted.Status.Phase, evicted.Status.Reason = v1.PodFailed, "Evicted"
	evicted.Status.ContainerStatuses[0].State = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 137}}
	n.putPod(evicted, "file", syncing)
	web := logFile(
		t,
		line("stdout", "F", "one"),
		line("stderr", "F", "two"),
		line("stdout", "P", "th"),
		line("stdout", "F", "ree"),
		line("stdout", "F", "four"),
	)
	n.pleg.set(
		observed("hello-node-1",
			&lifecyclev1.Container{Id: "c3", Name: "web", Attempt: 1, State: exited, LogPath: web},
			&lifecyclev1.Container{Id: "c2", Name: "web", State: exited, LogPath: logFile(t, line("stdout", "F", "before"))},
			&lifecyclev1.Container{Id: "c1", Name: "setup", State: exited, LogPath: logFile(t, line("stdout", "F", "set up"))},
		),
		// The status refers to this container, which waits for its restart, as the last one that ended.
		observed(
			"crash-node-1",
			&lifecyclev1.Container{
				Id:      "c7",
				Name:    "main",
				Attempt: 3,
				State:   exited,
				LogPath: logFile(t, line("stdout", "F", "crashed")),
			},
		),
		observed(
			"single-node-1",
			&lifecyclev1.Container{Id: "c9", Name: "main", State: exited, LogPath: logFile(t, line("stdout", "F", "alone"))},
		),
	)
	for _, test := range []struct{ args, want string }{
		{"hello-node-1 -c web", "one\ntwo\nthree\nfour\n"},
		{"hello-node-1 -c web --tail 1", "four\n"},
		{"hello-node-1 -c web --tail 0", ""},
		{"hello-node-1 -c web -f", "one\ntwo\nthree\nfour\n"},
		{"hello-node-1 -c web --previous", "before\n"},
		{"default/hello-node-1 -c setup", "set up\n"},
		{"single-node-1", "alone\n"},
		{"crash-node-1", "crashed\n"},
		{"crash-node-1 --previous", "crashed\n"},
	} {
		if got := n.must(append([]string{"logs"}, strings.Fields(test.args)...)...); got != test.want {
			t.Errorf("logs %s: %q, want %q", test.args, got, test.want)
		}
	}
	for _, test := range []struct{ args, want string }{
		{"hello-node-1", "choose with -c one of web, side, late; init containers: setup"},
		{"hello-node-1 -c db", `the pod has no container "db": its containers are web`},
		{"hello-node-1 -c late", "container late has not been created yet: ErrImagePull: no such image"},
		{"evicted-node-1", "container main has ended and was removed with its log: the pod is Failed, Evicted"},
		{"hello-node-1 -c setup --previous", "container setup has no previous log"},
		{"hello-node-1 -c web -f -p", "leave one out"},
		{"nobody", `there is no pod "nobody": there are crash-node-1, hello-node-1, single-node-1`},
	} {
		if _, _, err := n.run(
			append([]string{"logs"}, strings.Fields(test.args)...)...); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("logs %s: got %v, want %q", test.args, err, test.want)
		}
	}
}

func TestLogsWithoutSyncloop(t *testing.T) {
	n := newNode(t)
	n.serve(layout.PLEG)
	n.pleg.set(
		observed(
			"hello-node-1",
			&lifecyclev1.Container{Id: "c", Name: "web", State: exited, LogPath: logFile(t, line("stdout", "F", "still here"))},
		),
	)
	if got := n.must("logs", "hello-node-1"); got != "still here\n" {
		t.Errorf("must(logs, hello-node-1) = %q, want %q", got, "still here\n")
	}
}

func TestFollowedLogEndsWithItsContainer(t *testing.T) {
	n := newNode(t)
	n.serve(layout.PLEG)
	path := logFile(t, line("stdout", "F", "one"))
	container := &lifecyclev1.Container{Id: "c", Name: "web", State: running1, LogPath: path}
	n.pleg.set(observed("hello-node-1", container))
	r := n.start("logs", "hello-node-1", "-f")
	r.until(r.out, "one\n")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// The last line is written while the container ends, and must not be lost.
	if _, err := file.WriteString(line("stdout", "F", "two")); err != nil {
		t.Fatal(err)
	}
	r.until(r.out, "two\n")
	n.pleg.set(observed("hello-node-1", &lifecyclev1.Container{Id: "c", Name: "web", State: exited, LogPath: path}))
	if _, err := file.WriteString(line("stdout", "F", "three")); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	r.until(r.out, "three\n")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}
