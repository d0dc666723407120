package show

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

const tracedBy = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// putEvent makes syncloop tell something of a pod: count times in the last so many minutes, the last time at a time.
func (n *node) putEvent(namespace, pod, kind, container, reason, message string, count int32, last time.Time) {
	n.t.Helper()
	event := &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      pod + "." + reason + container,
		},
		Type:    kind,
		Reason:  reason,
		Message: message,
		Count:   count,
		InvolvedObject: v1.ObjectReference{
			Kind:      "Pod",
			Namespace: namespace,
			Name:      pod,
			UID:       types.UID("uid-" + namespace + "-" + pod),
		},
		FirstTimestamp: metav1.NewTime(last.Add(-time.Duration(count-1) * time.Minute)),
		LastTimestamp:  metav1.NewTime(last),
		Source:         v1.EventSource{Component: "kubelet", Host: "node-1"},
	}
	if container != "" {
		event.InvolvedObject.FieldPath = "spec.containers{" + container + "}"
	}
	data, err := event.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	n.engine.events.Put(
		event.Name,
		&enginev1.PodEvent{Event: data, LastSeenAt: timestamppb.New(last), Traceparent: tracedBy},
	)
}

// serveAll serves all services with events.
func (n *node) serveAll() {
	n.t.Helper()
	for _, service := range []layout.Service{layout.PLEG, layout.SyncLoop, layout.NodeStatus} {
		n.serve(service)
	}
}

// putNodeEvent adds an event of the node to syncloop or nodestatus.
func (n *node) putNodeEvent(by layout.Service, kind, reason, message string, last time.Time) {
	n.t.Helper()
	event := &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      "node-1." + reason,
		},
		Type:    kind,
		Reason:  reason,
		Message: message,
		Count:   1,
		InvolvedObject: v1.ObjectReference{
			Kind: "Node",
			Name: "node-1",
			UID:  "node-1",
		},
		FirstTimestamp: metav1.NewTime(last),
		LastTimestamp:  metav1.NewTime(last),
	}
	data, err := event.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	source := n.engine.events
	if by == layout.NodeStatus {
		source = n.node.events
	}
	source.Put(event.Name, &enginev1.PodEvent{Event: data, LastSeenAt: timestamppb.New(last)})
}

// TestEventsOfTheNode are shown beside those of pods, but not with a filter for pods.
func TestEventsOfTheNode(t *testing.T) {
	n := newNode(t)
	n.serveAll()
	n.putPod(pod("default", "hello-node-1", "web"), "file", syncing)
	n.putEvent(
		"default",
		"hello-node-1",
		"Warning",
		"web",
		"BackOff",
		"Back-off restarting failed container",
		1,
		ago(time.Minute),
	)
	n.putNodeEvent(layout.SyncLoop, "Warning", "ImageGCFailed", "the disk is read-only", ago(2*time.Minute))
	n.putNodeEvent(layout.NodeStatus, "Normal", "Starting", "Starting.", ago(3*time.Minute))
	golden(t, "events-node.txt", n.must("events"))
	golden(t, "events-node.json", n.must("events", "--types", "Node", "-o", "json"))
	for args, want := range map[string]string{
		"events --types warning": "BackOff ImageGCFailed",
		"events --types node":    "ImageGCFailed Starting",
		"events hello":           "BackOff",
		"events -n default":      "BackOff",
	} {
		var reasons []string
		out := n.must(strings.Fields(args)...)
		for _, reason := range []string{"BackOff", "ImageGCFailed", "Starting"} {
			if strings.Contains(out, reason) {
				reasons = append(reasons, reason)
			}
		}
		if got := strings.Join(reasons, " "); got != want {
			t.Errorf("%s shows %q, want %q:\n%s", args, got, want, out)
		}
	}
	r := n.start("events", "-w", "--types", "Node")
	r.until(r.out, "ImageGCFailed")
	n.putNodeEvent(layout.SyncLoop, "Warning", "ContainerGCFailed", "it is in use", ago(time.Second))
	r.until(r.out, "ContainerGCFailed")
	n.putNodeEvent(layout.NodeStatus, "Normal", "NodeReady", "Node node-1 status is now: NodeReady", ago(time.Second))
	r.until(r.out, "NodeReady")
	n.node.events.Delete("node-1.Starting") // it is an hour old: no new event
	n.putNodeEvent(layout.NodeStatus, "Normal", "NodeNotReady", "Node node-1 status is now: NodeNotReady", ago(0))
	r.until(r.out, "NodeNotReady")
	if got := strings.Count(r.out.String(), "Starting."); got != 1 {
		t.Errorf("what was dropped is shown %d times, want once:\n%s", got, r.out)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(r.out.String(), "BackOff") {
		t.Errorf("shows pods' too:\n%s", r.out.String())
	}
}

func TestEvents(t *testing.T) {
	n := newNode(t)
	n.serveAll()
	if got := n.must("events"); got != "There are no events.\n" {
		t.Errorf("without events: %q", got)
	}
	web := &lifecyclev1.Container{Id: "c2", Name: "web", State: running1, StartedAt: timestamppb.New(ago(time.Minute))}
	setup := &lifecyclev1.Container{
		Id:         "c1",
		Name:       "setup",
		State:      exited,
		FinishedAt: timestamppb.New(ago(2 * time.Minute)),
		Reason:     "Completed",
	}
	hello := observed("hello-node-1", web, setup)
	hung := observed("hung-node-1")
	hung.InspectError, hung.UnknownSince = "no answer", timestamppb.New(ago(30*time.Second))
	n.pleg.set(hello, hung)
	n.putEvent("default", "hello-node-1", "Normal", "web", "Started", "Container started", 1, ago(59*time.Second))
	n.putEvent(
		"kube-system",
		"crash-node-1",
		"Warning",
		"main",
		"BackOff",
		"Back-off restarting\nfailed container",
		3,
		ago(10*time.Second),
	)
	n.putEvent(
		"default",
		"crash-node-1",
		"Warning",
		"",
		"FailedCreatePodSandBox",
		"Failed to create pod sandbox: no network",
		1,
		ago(90*time.Second),
	)
	n.putPod(pod("default", "hello-node-1", "web"), "file", syncing)
	golden(t, "events.txt", n.must("events"))
	golden(t, "events-wide.txt", n.must("events", "-o", "wide"))
	golden(t, "events.json", n.must("events", "-o", "json"))
	golden(t, "events-hello.txt", n.must("events", "hello"))
	for _, name := range []string{"hello", "default/hello-node-1", "uid-default-hello-node-1"} {
		golden(t, "events-hello.txt", n.must("events", "--pod", name))
		if got := strings.Count(n.must("events", "-o", "json", "--pod", name), "\n"); got != 3 {
			t.Errorf("of %s, %d events are printed a line each, want 3", name, got)
		}
	}
	golden(t, "events-types.txt", n.must("events", "--types", "warning,LIFECYCLE"))
	golden(t, "events-namespace.txt", n.must("ev", "-n", "kube-system"))
	for args, want := range map[string]string{
		"events --types Warnings":             `--types: "Warnings": must be Normal, Warning, Lifecycle, Node`,
		"events -n default kube-system/crash": `"kube-system/crash" is not in the namespace "default"`,
	} {
		if _, _, err := n.run(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

func TestWatchEvents(t *testing.T) {
	n := newNode(t)
	n.serveAll()
	web := &lifecyclev1.Container{Id: "c2", Name: "web", State: running1, StartedAt: timestamppb.New(ago(time.Minute))}
	hello := observed("hello-node-1", web)
	n.putEvent("default", "hello-node-1", "Normal", "web", "Started", "Container started", 1, ago(59*time.Second))
	n.putEvent("default", "hello-node-1", "Normal", "web", "Created", "Container created", 1, ago(61*time.Second))

	n.pleg.events.Emit(
		hello.GetUid(),
		nil,
		&lifecyclev1.Event{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, PodUid: hello.GetUid(), Status: hello},
	)
	r := n.start("events", "-w")
	r.until(r.out, "Container started")
	died := &lifecyclev1.Event{
		Type:          lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED,
		PodUid:        hello.GetUid(),
		ContainerId:   "c2",
		ContainerName: "web",
		ExitCode:      137,
		Reason:        "OOMKilled",
		OccurredAt:    timestamppb.New(ago(time.Second)),
		Status:        hello,
	}
	n.pleg.events.Emit(hello.GetUid(), died, died)
	r.until(r.out, "OOMKilled")
	for count := range int32(2) {
		n.putEvent(
			"default",
			"hello-node-1",
			"Warning",
			"web",
			"BackOff",
			"Back-off restarting failed container",
			count+1,
			ago(time.Second/2),
		)
		r.until(r.out, fmt.Sprintf("%d       BackOff", count+1))
	}
	n.engine.events.Delete("hello-node-1.Createdweb") // it is an hour old: no new event
	gone := &lifecyclev1.Event{
		Type:          lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED,
		PodUid:        hello.GetUid(),
		ContainerId:   "c2",
		ContainerName: "web",
		ObservedAt:    timestamppb.New(now),
		Status:        &lifecyclev1.PodStatus{Uid: hello.GetUid()},
	}
	n.pleg.events.EmitLast(hello.GetUid(), gone)
	r.until(r.out, "ContainerRemoved")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	golden(t, "events-watch.txt", r.out.String())
}

// Any number of commands may watch, each the pods of its filter; JSON is an object a line.
func TestWatchEventsOfOnePodAsJSON(t *testing.T) {
	n := newNode(t)
	n.serveAll()
	n.putPod(pod("default", "hello-node-1", "web"), "file", syncing)
	var watchers []*running
	for range 5 {
		watchers = append(watchers, n.start("events", "-w", "--pod", "hello", "-o", "json"))
	}
	hello, other := observed("hello-node-1"), observed("other-node-1")
	hello.InspectError = "no answer"
	publish := func(status *lifecyclev1.PodStatus, kind lifecyclev1.EventType, code int32) {
		event := &lifecyclev1.Event{
			Type:       kind,
			PodUid:     status.GetUid(),
			ExitCode:   code,
			OccurredAt: timestamppb.New(now),
			Status:     status,
		}
		n.pleg.events.Emit(status.GetUid(), event, event)
	}
	n.putEvent("default", "hello-node-1", "Normal", "web", "Started", "Container started", 1, ago(time.Minute))
	for _, r := range watchers {
		r.until(r.out, "Container started")
	}
	publish(other, lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, 3)
	publish(hello, lifecyclev1.EventType_EVENT_TYPE_POD_SYNC, 0)
	publish(hello, lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, 7)
	for _, r := range watchers {
		r.until(r.out, `"exitCode":7`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		golden(t, "events-watch-pod.json", r.out.String())
	}
}

func TestWatchEventsReportsMissedEvents(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.PLEG)
	n.serve(layout.SyncLoop)
	emit := func(containers ...*lifecyclev1.Container) {
		status := observed("hello-node-1", containers...)
		event := &lifecyclev1.Event{
			Type:       lifecyclev1.EventType_EVENT_TYPE_POD_SYNC,
			PodUid:     status.GetUid(),
			ObservedAt: timestamppb.New(now),
			Status:     status,
		}
		n.pleg.events.Emit(status.GetUid(), event, event)
	}
	emit(&lifecyclev1.Container{Id: "c1", Name: "web", State: running1, StartedAt: timestamppb.New(ago(time.Minute))})
	r := n.start("events", "-w")
	r.until(r.out, "ContainerStarted")
	stop()
	n.pleg.events = newNode(t).pleg.events
	emit(
		&lifecyclev1.Container{
			Id:         "c1",
			Name:       "web",
			State:      exited,
			FinishedAt: timestamppb.New(ago(30 * time.Second)),
			ExitCode:   3,
			Reason:     "Error",
		},
		&lifecyclev1.Container{Id: "c2", Name: "web", State: running1, StartedAt: timestamppb.New(ago(20 * time.Second))},
	)
	n.serve(layout.PLEG)
	r.until(r.out, "11:59:40.000")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	golden(t, "events-missed.txt", r.out.String())
}

// TestEventsOfTheAvailableServicesAreShown, with a line for each service that is down.
func TestEventsOfTheAvailableServicesAreShown(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.SyncLoop)
	n.putEvent("default", "hello-node-1", "Normal", "web", "Started", "Container started", 1, ago(time.Minute))
	out, _, err := n.run("events")
	if err == nil || !strings.Contains(err.Error(), "cannot reach pleg") ||
		!strings.Contains(err.Error(), "\ncannot reach nodestatus") ||
		!strings.Contains(out, "Container started") {
		t.Errorf("printed %q, error %v", out, err)
	}
	if out := n.must("events", "--types", "Normal,Warning", "hello-node-1"); !strings.Contains(out, "Container started") {
		t.Errorf("without what pleg and nodestatus have: %q", out)
	}
	stop()
	if out, _, err := n.run("events"); err == nil || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "is the node running?") {
		t.Errorf("of a node that does not run: printed %q, error %v", out, err)
	}
}

// TestWatchEventsOfTheAvailableServices: a line names the service that is down, and its events follow when it is back.
func TestWatchEventsOfTheAvailableServices(t *testing.T) {
	n := newNode(t)
	if _, _, err := n.run("events", "-w"); err == nil || !strings.Contains(err.Error(), "cannot reach pleg") {
		t.Errorf("of a node that does not run: %v", err)
	}
	n.serve(layout.SyncLoop)
	n.serve(layout.PLEG)
	n.putEvent("default", "hello-node-1", "Normal", "web", "Started", "Container started", 1, ago(time.Minute))
	n.putNodeEvent(layout.NodeStatus, "Normal", "Starting", "Starting kubelet.", ago(2*time.Minute))
	r := n.start("events", "-w")
	r.until(r.out, "Container started")
	r.until(r.errOut, "nodestatus is unreachable; waiting until it is reachable again\n")
	stop := n.serve(layout.NodeStatus)
	r.until(r.out, "Starting kubelet.")
	stop()
	r.untilTrue(
		"the line of one that goes",
		func() bool { return strings.Count(r.errOut.String(), "nodestatus is unreachable") == 2 },
	)
	n.serve(layout.NodeStatus)
	n.putNodeEvent(layout.NodeStatus, "Normal", "NodeReady", "Node node-1 status is now: NodeReady", ago(time.Second))
	r.until(r.out, "NodeReady")
	if out := r.out.String(); strings.Count(out, "Starting") != 2 || strings.Contains(r.errOut.String(), "pleg") {
		t.Errorf("printed\n%s\n%s\nwant %q 2 times and without %q", out, r.errOut, "Starting", "pleg")
	}
}

func (f *fakeNode) WatchNodeEvents(
	r *nodev1.WatchNodeEventsRequest,
	to grpc.ServerStreamingServer[nodev1.WatchNodeEventsResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		f.events,
		r.GetResumeToken(),
		func(frame *streamv1.Frame, event *enginev1.PodEvent) error {
			return to.Send(&nodev1.WatchNodeEventsResponse{Frame: frame, Event: event})
		},
	)
}

// older is a nodestatus of a version without events.
type older struct {
	nodev1.UnimplementedNodeServiceServer
}

// TestWatchEventsBesideAnOlderVersion shows the events of the other services.
func TestWatchEventsBesideAnOlderVersion(t *testing.T) {
	n := newNode(t)
	n.serve(layout.PLEG)
	n.serve(layout.SyncLoop)
	n.serveAs(layout.NodeStatus, func(s *grpc.Server) { nodev1.RegisterNodeServiceServer(s, older{}) })
	n.putEvent("default", "hello-node-1", "Normal", "web", "Started", "Container started", 1, ago(time.Minute))
	r := n.start("events", "-w")
	r.until(r.out, "Container started")
	r.until(r.errOut, "no events of nodestatus: nodestatus: ")
}

// A hanging service has no events and does not delay the others.
func TestWatchEventsOfOneWhenTheOtherHangs(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
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
	defer func() { _ = listener.Close() }() // the listener is no longer needed
	n.putEvent("default", "hello-node-1", "Normal", "web", "Started", "Container started", 1, ago(time.Minute))
	r := n.start("events", "-w")
	r.untilTrue("the wait for the other", n.clock.HasWaiters)
	r.untilTrue("what there is", func() bool {
		n.clock.Step(callTimeout)
		return strings.Contains(r.out.String(), "Container started")
	})
}
