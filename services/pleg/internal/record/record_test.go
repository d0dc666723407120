package record_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

const (
	created = lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
	running = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	exited  = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	unknown = lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN

	ready    = lifecyclev1.SandboxState_SANDBOX_STATE_READY
	notReady = lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
)

// at returns a time in the order of its number.
func at(n int) *timestamppb.Timestamp { return timestamppb.New(time.Unix(1000+int64(n), 0)) }

func container(id string, state lifecyclev1.ContainerState, n int) *lifecyclev1.Container {
	c := &lifecyclev1.Container{Id: id, Name: "app", State: state, CreatedAt: at(n)}
	if state == running || state == exited {
		c.StartedAt = at(n + 1)
	}
	if state == exited {
		c.FinishedAt, c.ExitCode, c.Reason = at(n+2), 3, "Error"
	}
	return c
}

func sandbox(id string, state lifecyclev1.SandboxState) *lifecyclev1.Sandbox {
	return &lifecyclev1.Sandbox{Id: id, State: state, CreatedAt: at(0)}
}

func status(parts ...any) *lifecyclev1.PodStatus {
	s := &lifecyclev1.PodStatus{Uid: "uid-1"}
	for _, part := range parts {
		switch part := part.(type) {
		case *lifecyclev1.Container:
			s.Containers = append(s.Containers, part)
		case *lifecyclev1.Sandbox:
			s.Sandboxes = append(s.Sandboxes, part)
			if part.GetState() == ready {
				s.Ips = part.GetIps()
			}
		}
	}
	return s
}

// say returns changes as text.
func format(changes []record.Change) []string {
	texts := []string{}
	for _, c := range changes {
		switch {
		case c.Container != nil:
			texts = append(texts, fmt.Sprintf("%v %s", c.Type, c.Container.GetId()))
		case c.Sandbox != nil:
			texts = append(texts, fmt.Sprintf("%v %s", c.Type, c.Sandbox.GetId()))
		default:
			texts = append(texts, c.Type.String())
		}
	}
	for i := range texts {
		texts[i] = texts[i][len("EVENT_TYPE_"):]
	}
	return texts
}

func TestWhatIsSeenBecomesEvents(t *testing.T) {
	up := sandbox("s", ready)
	for _, tt := range []struct {
		name string
		// seen are the observations; want are the changes of the last one.
		seen []*lifecyclev1.PodStatus
		want []string
	}{
		{"a sandbox comes up", []*lifecyclev1.PodStatus{status(up)}, []string{"POD_SYNC s"}},
		{"nothing new", []*lifecyclev1.PodStatus{status(up, container("a", running, 1)), status(up, container("a", running, 1))}, []string{}},
		{"created alone says nothing", []*lifecyclev1.PodStatus{status(up), status(up, container("a", created, 1))}, []string{}},
		{"started", []*lifecyclev1.PodStatus{status(up, container("a", created, 1)), status(up, container("a", running, 1))}, []string{"CONTAINER_STARTED a"}},
		{"died", []*lifecyclev1.PodStatus{status(up, container("a", running, 1)), status(up, container("a", exited, 1))}, []string{"CONTAINER_DIED a"}},
		{"came and died unseen", []*lifecyclev1.PodStatus{status(up), status(up, container("a", exited, 1))}, []string{"CONTAINER_DIED a"}},
		{"removed", []*lifecyclev1.PodStatus{status(up, container("a", exited, 1)), status(up)}, []string{"CONTAINER_REMOVED a"}},
		{
			"died and removed unseen", []*lifecyclev1.PodStatus{status(up, container("a", running, 1)), status(up)},
			[]string{"CONTAINER_DIED a", "CONTAINER_REMOVED a"},
		},
		{
			"restarted quickly: the old died before the new started",
			[]*lifecyclev1.PodStatus{status(up, container("a", running, 1)), status(up, container("b", running, 5), container("a", exited, 1))},
			[]string{"CONTAINER_DIED a", "CONTAINER_STARTED b"},
		},
		{
			"a new sandbox with its container, the old one ended",
			[]*lifecyclev1.PodStatus{status(up, container("a", running, 1)), status(sandbox("t", ready), sandbox("s", notReady), container("b", running, 5), container("a", exited, 1))},
			[]string{"POD_SYNC t", "CONTAINER_DIED a", "CONTAINER_STARTED b", "POD_SYNC"},
		},
		{"a sandbox ends", []*lifecyclev1.PodStatus{status(up), status(sandbox("s", notReady))}, []string{"POD_SYNC"}},
		{"all gone", []*lifecyclev1.PodStatus{status(up, container("a", exited, 1)), status()}, []string{"CONTAINER_REMOVED a", "POD_SYNC"}},
		{
			"the runtime forgets, and remembers", []*lifecyclev1.PodStatus{status(up, container("a", running, 1)), status(up, container("a", unknown, 1)), status(up, container("a", running, 1))},
			[]string{"POD_SYNC"},
		},
		{
			"a dead container is said to run", []*lifecyclev1.PodStatus{status(up, container("a", exited, 1)), status(up, container("a", running, 1))},
			[]string{"POD_SYNC"},
		},
		{"never there", []*lifecyclev1.PodStatus{status()}, []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var pod record.Pod
			var changes []record.Change
			for _, seen := range tt.seen {
				pod, changes = pod.Observe(proto.CloneOf(seen))
			}
			if diff := cmp.Diff(tt.want, format(changes)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddressesAreKeptWhenTheNetworkGoes(t *testing.T) {
	up := sandbox("s", ready)
	up.Ips = []string{"10.88.0.5"}
	pod, _ := record.Pod{}.Observe(status(up))
	pod, _ = pod.Observe(status(sandbox("s", notReady)))
	if got := pod.Status.GetIps(); !slices.Equal(got, []string{"10.88.0.5"}) {
		t.Errorf("without a network the addresses are %v", got)
	}
	next := sandbox("t", ready)
	next.Ips = []string{"10.88.0.6"}
	pod, _ = pod.Observe(status(next, sandbox("s", notReady)))
	if got := pod.Status.GetIps(); !slices.Equal(got, []string{"10.88.0.6"}) {
		t.Errorf("with a new sandbox the addresses are %v, want %v", got, []string{"10.88.0.6"})
	}
	if pod, _ = pod.Observe(status()); len(pod.Status.GetIps()) != 0 {
		t.Errorf("a pod that is gone has the addresses %v", pod.Status.GetIps())
	}
}

func TestAFailureKeepsWhatIsKnown(t *testing.T) {
	pod, _ := record.Pod{}.Observe(status(sandbox("s", ready), container("a", running, 1)))
	shared := pod.Status
	failed, changed := pod.Fail(nil, "no answer")
	if !changed || failed.Status.GetInspectError() != "no answer" || len(failed.Status.GetContainers()) != 1 {
		t.Errorf("after a failure the status is %v", failed.Status)
	}
	if shared.GetInspectError() != "" {
		t.Error("a status that others read was changed")
	}
	if _, changed := failed.Fail(nil, "no answer"); changed {
		t.Error("the same failure counts as news")
	}
	_, changes := failed.Observe(status(sandbox("s", ready), container("a", exited, 1)))
	if diff := cmp.Diff([]string{"CONTAINER_DIED a"}, format(changes)); diff != "" {
		t.Errorf("when it works again (-want +got):\n%s", diff)
	}
}

func TestAPodKnownByListsOnlyStartsAndDiesOnce(t *testing.T) {
	pod, changed := record.Pod{}.Fail(status(sandbox("s", ready), container("a", running, 1)), "no answer")
	if !changed || pod.Inspected() {
		t.Error("a pod that was only listed counts as inspected")
	}
	pod, changes := pod.Observe(status(sandbox("s", ready), container("a", running, 1)))
	if diff := cmp.Diff([]string{"CONTAINER_STARTED a"}, format(changes)); diff != "" || !pod.Inspected() {
		t.Errorf("the first inspection (-want +got):\n%s", diff)
	}
}

// runtime is a pod in a runtime with rules: states only advance, ids are never reused.
type runtime struct {
	sandboxes  []*lifecyclev1.Sandbox
	containers []*lifecyclev1.Container
	ids, clock int
}

func (r *runtime) step(t *rapid.T) {
	r.clock++
	pick := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "which") }
	switch rapid.SampledFrom([]string{"sandbox", "stop", "create", "run", "exit", "lose", "remove", "clear"}).
		Draw(t, "step") {
	case "sandbox":
		r.ids++
		r.sandboxes = append(
			r.sandboxes,
			&lifecyclev1.Sandbox{Id: fmt.Sprint("s", r.ids), State: ready, CreatedAt: at(r.clock)},
		)
	case "stop":
		if len(r.sandboxes) > 0 {
			r.sandboxes[pick(len(r.sandboxes))].State = notReady
		}
	case "create":
		r.ids++
		r.containers = append(
			r.containers,
			&lifecyclev1.Container{Id: fmt.Sprint("c", r.ids), State: created, CreatedAt: at(r.clock)},
		)
	case "run", "exit", "lose":
		if len(r.containers) == 0 {
			return
		}
		c := r.containers[pick(len(r.containers))]
		switch next := rapid.SampledFrom([]lifecyclev1.ContainerState{running, exited, unknown}).Draw(t, "state"); {
		case c.State == exited:
		case next == running:
			c.State, c.StartedAt = running, at(r.clock)
		case next == exited:
			c.State, c.FinishedAt, c.ExitCode = exited, at(r.clock), int32(r.ids)
		default:
			c.State = unknown
		}
	case "remove":
		if len(r.containers) > 0 {
			i := pick(len(r.containers))
			r.containers = slices.Delete(r.containers, i, i+1)
		}
	case "clear":
		r.sandboxes, r.containers = nil, nil
	}
}

func (r *runtime) status() *lifecyclev1.PodStatus {
	s := &lifecyclev1.PodStatus{Uid: "uid-1"}
	for _, sb := range slices.Backward(r.sandboxes) {
		s.Sandboxes = append(s.Sandboxes, proto.CloneOf(sb))
	}
	for _, c := range slices.Backward(r.containers) {
		s.Containers = append(s.Containers, proto.CloneOf(c))
	}
	return s
}

// For any sequence of changes, and however rarely they are observed, the events of each container are Ordered (start
// before death before removal), Unique (none is repeated) and Reliable (every visible change has an event), and the
// record ends equal to the runtime.
func TestEventsAreOrderedUniqueAndReliable(t *testing.T) {
	rank := map[lifecyclev1.EventType]int{
		lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED: 1,
		lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED:    2,
		lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED: 3,
	}
	rapid.Check(t, func(t *rapid.T) {
		var world runtime
		var pod record.Pod
		counts := map[string]int{}
		seen := map[string]bool{}
		look := func() {
			if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
				pod, _ = pod.Fail(world.status(), "no answer")
				return
			}
			knew := !pod.Gone()
			var changes []record.Change
			pod, changes = pod.Observe(world.status())
			for _, c := range changes {
				if c.Container == nil {
					continue
				}
				id := c.Container.GetId()
				if rank[c.Type] <= counts[id] {
					t.Fatalf("%v of %s came after rank %d", c.Type, id, counts[id])
				}
				counts[id] = rank[c.Type]
			}
			if knew && pod.Gone() && len(changes) == 0 {
				t.Fatal("the pod went without a word")
			}
			for _, c := range world.containers {
				seen[c.GetId()] = true
				want := map[lifecyclev1.ContainerState]int{running: 1, exited: 2}[c.GetState()]
				if counts[c.GetId()] < want {
					t.Fatalf("%s is %v and nobody was told", c.GetId(), c.GetState())
				}
			}
			for id := range seen {
				if !slices.ContainsFunc(world.containers, func(c *lifecyclev1.Container) bool { return c.GetId() == id }) &&
					counts[id] != 3 {
					t.Fatalf("%s is gone and nobody was told", id)
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			world.step(t)
			if rapid.Bool().Draw(t, "look") {
				look()
			}
			if rapid.IntRange(0, 9).Draw(t, "copies") == 0 {
				pod = throughARecording(t, pod)
			}
		}
		pod, _ = pod.Observe(world.status())
		if diff := cmp.Diff(world.status(), pod.Status, protocmp.Transform()); diff != "" {
			t.Fatalf("the record is not what the runtime has (-runtime +record):\n%s", diff)
		}
		listing := record.Listing{
			Sandboxes:  map[string]lifecyclev1.SandboxState{},
			Containers: map[string]lifecyclev1.ContainerState{},
		}
		for _, s := range world.sandboxes {
			listing.Sandboxes[s.GetId()] = s.GetState()
		}
		for _, c := range world.containers {
			listing.Containers[c.GetId()] = c.GetState()
		}
		if !pod.Matches(listing) {
			t.Fatal("the record does not match a list of the same runtime")
		}
		world.step(t)
		before := proto.CloneOf(pod.Status)
		pod.Observe(world.status())
		if !proto.Equal(before, pod.Status) {
			t.Fatal("observing changed a status that others read")
		}
	})
}

// throughARecording returns the record of a pod as a recording has it.
func throughARecording(t *rapid.T, pod record.Pod) record.Pod {
	data, err := proto.Marshal(pod.Recorded("uid-1"))
	if err != nil {
		t.Fatal(err)
	}
	recorded := &debugv1.PLEGRecordPod{}
	if err := proto.Unmarshal(data, recorded); err != nil {
		t.Fatal(err)
	}
	return record.FromRecorded(recorded)
}

// TestARecordingHasTheWholeRecord: what was published before this process, too.
func TestARecordingHasTheWholeRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		empty, _ := record.Pod{}.Observe(status())
		observed, _ := record.Pod{}.Observe(status(sandbox("s", ready), container("a", running, 1)))
		listed, _ := record.Pod{}.Fail(status(sandbox("s", ready), container("a", created, 1)), "no answer")
		pod := rapid.SampledFrom([]record.Pod{
			{}, empty, observed, listed, record.Restore(record.Published{}), record.Restore(observed.Published()),
			record.Restore(listed.Published()),
		}).Draw(t, "record")
		if rapid.Bool().Draw(t, "fails") {
			pod, _ = pod.Fail(status(sandbox("s", ready)), "broken")
		}
		again := throughARecording(t, pod)
		seen := func() *lifecyclev1.PodStatus { return status(sandbox("s", ready), container("a", exited, 1)) }
		if again.Inspected() != pod.Inspected() || again.Restored() != pod.Restored() {
			t.Fatalf("inspected %v, restored %v, want %v, %v", again.Inspected(), again.Restored(), pod.Inspected(), pod.Restored())
		}
		_, want := pod.Observe(seen())
		_, got := again.Observe(seen())
		if diff := cmp.Diff(format(want), format(got)); diff != "" {
			t.Fatalf("changes (-want +got):\n%s", diff)
		}
	})
}

func TestAListThatDiffersDoesNotMatch(t *testing.T) {
	pod, _ := record.Pod{}.Observe(status(sandbox("s", ready), container("a", running, 1)))
	listing := func(s lifecyclev1.SandboxState, id string, c lifecyclev1.ContainerState) record.Listing {
		return record.Listing{
			Sandboxes: map[string]lifecyclev1.SandboxState{"s": s}, Containers: map[string]lifecyclev1.ContainerState{id: c},
		}
	}
	for name, l := range map[string]record.Listing{
		"sandbox ended": listing(notReady, "a", running), "container ended": listing(ready, "a", exited), "another container": listing(ready, "b", running), "nothing": {},
	} {
		if pod.Matches(l) {
			t.Errorf("%s: Matches() = true, want false", name)
		}
	}
	if !pod.Matches(listing(ready, "a", running)) {
		t.Error("the same does not match")
	}
}
