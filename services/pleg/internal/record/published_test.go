package record_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// named returns a status with labels and all fields, as an inspection returns it.
func named(parts ...any) *lifecyclev1.PodStatus {
	s := proto.CloneOf(status(parts...))
	s.Name, s.Namespace, s.Ips = "web", "default", []string{"10.88.0.5"}
	for _, sandbox := range s.GetSandboxes() {
		sandbox.Labels, sandbox.Annotations = map[string]string{
			"app": "web",
		}, map[string]string{
			"quartet.dev/traceparent": "00-a",
			"note":                    "long",
		}
	}
	for _, c := range s.GetContainers() {
		c.Labels, c.LogPath = map[string]string{"app": "web"}, "/var/log"
	}
	return s
}

func TestChangesSinceTheLastPublicationBecomeEvents(t *testing.T) {
	up := sandbox("s", ready)
	backwards := container("b", exited, 5)
	backwards.FinishedAt = at(1) // the clock was set back while it ran
	for _, tt := range []struct {
		name string
		// told is what was sent; nil: nothing. seen is the first observation after it.
		published, seen *lifecyclev1.PodStatus
		want            []string
	}{
		{"nothing new", named(up, container("a", running, 1)), named(up, container("a", running, 1)), []string{}},
		{"nothing new of a dead one", named(up, container("a", exited, 1)), named(up, container("a", exited, 1)), []string{}},
		{"nothing new of one that is only created", named(up, container("a", created, 1)), named(up, container("a", created, 1)), []string{}},
		{"died", named(up, container("a", running, 1)), named(up, container("a", exited, 1)), []string{"CONTAINER_DIED a"}},
		{"started", named(up, container("a", created, 1)), named(up, container("a", running, 1)), []string{"CONTAINER_STARTED a"}},
		{"started and died", named(up, container("a", created, 1)), named(up, container("a", exited, 1)), []string{"CONTAINER_STARTED a", "CONTAINER_DIED a"}},
		{
			"two came, one after the other", named(up), named(up, container("b", exited, 5), container("a", exited, 1)),
			[]string{"CONTAINER_STARTED a", "CONTAINER_DIED a", "CONTAINER_STARTED b", "CONTAINER_DIED b"},
		},
		{"died before it started, by the clock", named(up), named(up, backwards), []string{"CONTAINER_STARTED b", "CONTAINER_DIED b"}},
		{"never started", named(up, container("a", created, 1)), named(up, &lifecyclev1.Container{Id: "a", State: exited}), []string{"CONTAINER_DIED a"}},
		{"the pod is gone", named(up, container("a", running, 1)), status(), []string{"CONTAINER_DIED a", "CONTAINER_REMOVED a", "POD_SYNC"}},
		{"the dead pod is gone", named(up, container("a", exited, 1)), status(), []string{"CONTAINER_REMOVED a", "POD_SYNC"}},
		{"the sandbox ended", named(up, container("a", exited, 1)), named(sandbox("s", notReady), container("a", exited, 1)), []string{"POD_SYNC"}},
		{"it was not there", nil, named(up, container("a", exited, 1)), []string{"POD_SYNC s", "CONTAINER_STARTED a", "CONTAINER_DIED a"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var published record.Published
			if tt.published != nil {
				before, _ := record.Pod{}.Observe(proto.CloneOf(tt.published))
				published = before.Published()
			}
			pod, changes := record.Restore(published).Observe(proto.CloneOf(tt.seen))
			if diff := cmp.Diff(tt.want, format(changes)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if _, changes := pod.Observe(proto.CloneOf(tt.seen)); len(changes) != 0 || pod.Restored() {
				t.Errorf("the same once more makes the events %v", format(changes))
			}
		})
	}
}

func TestAPodThatIsGoneKeepsItsName(t *testing.T) {
	before, _ := record.Pod{}.Observe(named(sandbox("s", ready)))
	for what, pod := range map[string]record.Pod{"on record": before, "told before": record.Restore(before.Published())} {
		if gone, _ := pod.Observe(status()); !gone.Gone() || gone.Status.GetName() != "web" ||
			gone.Status.GetNamespace() != "default" {
			t.Errorf("%s: it is %v", what, gone.Status)
		}
	}
}

func TestAddressesAreKeptOverARestart(t *testing.T) {
	before, _ := record.Pod{}.Observe(named(sandbox("s", ready)))
	seen := named(sandbox("s", notReady))
	seen.Ips = nil
	if pod, _ := record.Restore(before.Published()).Observe(seen); len(pod.Status.GetIps()) != 1 {
		t.Errorf("the addresses are %v, want exactly one", pod.Status.GetIps())
	}
}

// TestAFailureBeforeTheFirstObservationLosesNothing: the first observation is compared with what was sent.
func TestAFailureBeforeTheFirstObservationLosesNothing(t *testing.T) {
	before, _ := record.Pod{}.Observe(named(sandbox("s", ready), container("a", running, 1)))
	failed, changed := record.Restore(before.Published()).
		Fail(named(sandbox("s", ready), container("a", unknown, 1)), "no answer")
	if !changed || !failed.Restored() || failed.Status.GetInspectError() != "no answer" {
		t.Errorf("after a failure it is %v", failed.Status)
	}
	want := before.Published()
	want.Status.InspectError, want.Whole = "no answer", false
	if diff := cmp.Diff(want, failed.Published(), protocmp.Transform()); diff != "" {
		t.Errorf("what was told (-want +got):\n%s", diff)
	}
	for what, pod := range map[string]record.Pod{"at once": failed, "after another restart": record.Restore(failed.Published())} {
		if _, changes := pod.Observe(named(sandbox("s", ready), container("a", running, 1))); len(changes) != 1 {
			t.Errorf("%s: that it can be inspected again makes %v", what, format(changes))
		}
		if _, changes := pod.Observe(named(sandbox("s", ready), container("a", exited, 1))); len(changes) != 1 ||
			changes[0].Container == nil {
			t.Errorf("%s: its death makes %v", what, format(changes))
		}
	}
}

func TestAPodThatWasNeverInspectedIsReportedAsListed(t *testing.T) {
	listed, _ := record.Pod{}.Fail(named(sandbox("s", ready), container("a", running, 1)), "no answer")
	_, changes := record.Restore(listed.Published()).Observe(named(sandbox("s", ready), container("a", running, 1)))
	if diff := cmp.Diff([]string{"CONTAINER_STARTED a"}, format(changes)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	_, changes = record.Restore(listed.Published()).Observe(status())
	if diff := cmp.Diff([]string{"CONTAINER_DIED a", "CONTAINER_REMOVED a", "POD_SYNC"}, format(changes)); diff != "" {
		t.Errorf("when it is gone (-want +got):\n%s", diff)
	}
	if published := (record.Pod{}).Published(); published.Status != nil {
		t.Errorf("of a pod of which nothing was told it says %v", published)
	}
}

// TestAContainerThatWasOnlyListedEndsAsAnyOther: a list has shown it to clients.
func TestAContainerThatWasOnlyListedEndsAsAnyOther(t *testing.T) {
	listed := named(sandbox("s", ready), container("b", running, 2), container("a", unknown, 1))
	before, _ := record.Pod{}.Observe(named(sandbox("s", ready), container("a", exited, 1)))
	for what, tt := range map[string]struct {
		pod  record.Pod
		want []string
	}{
		"by a pleg that knows nothing of the pod": {record.Pod{}, []string{"CONTAINER_DIED a", "CONTAINER_REMOVED a", "CONTAINER_DIED b", "CONTAINER_REMOVED b"}},
		"by one to which the pod is new":          {record.Restore(record.Published{}), []string{"CONTAINER_DIED a", "CONTAINER_REMOVED a", "CONTAINER_DIED b", "CONTAINER_REMOVED b"}},
		"by one that knows what was told":         {record.Restore(before.Published()), []string{"CONTAINER_DIED b", "CONTAINER_REMOVED b", "CONTAINER_REMOVED a"}},
	} {
		failed, _ := tt.pod.Fail(proto.CloneOf(listed), "no answer")
		_, changes := failed.Observe(status())
		if diff := cmp.Diff(tt.want, ofContainers(changes)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		_, changes = record.Restore(failed.Published()).Observe(status())
		if diff := cmp.Diff(tt.want, ofContainers(changes)); diff != "" {
			t.Errorf("%s, and after a restart (-want +got):\n%s", what, diff)
		}
	}
}

// ofContainers returns changes as text, without those of the pod.
func ofContainers(changes []record.Change) []string {
	return slices.DeleteFunc(format(changes), func(what string) bool { return what == "POD_SYNC" })
}

func TestOnlyPublishedChangesMoveAPod(t *testing.T) {
	pod, _ := record.Pod{}.Observe(named(sandbox("s", ready), container("a", running, 1)))
	same, _ := pod.Observe(named(sandbox("s", ready), container("a", running, 1)))
	next, _ := pod.Observe(named(sandbox("s", ready), container("b", created, 2), container("a", running, 1)))
	if pod.Moved(same) || !pod.Moved(next) || !(record.Pod{}).Moved(pod) {
		t.Errorf(
			"the same has moved: %v; a new container has: %v; the first observation has: %v",
			pod.Moved(same),
			pod.Moved(next),
			record.Pod{}.Moved(pod),
		)
	}
}

func TestListsConfirmWhatWasObserved(t *testing.T) {
	up, app := sandbox("s", ready), container("a", running, 1)
	withMessage := container("m", exited, 1)
	withMessage.Message = "may be secret"
	observed := func(parts ...any) record.Pod {
		pod, _ := record.Pod{}.Observe(named(parts...))
		return pod
	}
	failed, _ := observed(up, app).Fail(nil, "no answer")
	listed, _ := record.Restore(observed(up, app).Published()).Fail(named(up, container("a", unknown, 1)), "no answer")
	for _, tt := range []struct {
		name   string
		before record.Pod
		// lists are the runtime's, in the words of a status.
		lists *lifecyclev1.PodStatus
		want  bool
	}{
		{"nothing new", observed(up, app), named(up, app), true},
		{"nothing new of a dead one", observed(up, container("a", exited, 1)), named(up, container("a", exited, 1)), true},
		{"nothing new without a network", observed(sandbox("s", notReady)), named(sandbox("s", notReady)), true},
		{"a container ended", observed(up, app), named(up, container("a", exited, 1)), false},
		{"a container came", observed(up, app), named(up, container("b", created, 2), app), false},
		{"another container", observed(up, app), named(up, container("b", running, 1)), false},
		{"the sandbox ended", observed(up, app), named(sandbox("s", notReady), app), false},
		{"it is gone", observed(up, app), named(), false},
		{"a message was not stored", observed(up, withMessage), named(up, withMessage), false},
		{"the last inspection had failed", failed, named(up, app), false},
		{"it was only listed", listed, named(up, app), false},
		{"it was never seen", record.Pod{}, named(up, app), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := record.Listing{
				Sandboxes:  map[string]lifecyclev1.SandboxState{},
				Containers: map[string]lifecyclev1.ContainerState{},
			}
			for _, s := range tt.lists.GetSandboxes() {
				l.Sandboxes[s.GetId()] = s.GetState()
			}
			for _, c := range tt.lists.GetContainers() {
				l.Containers[c.GetId()] = c.GetState()
			}
			restored := record.Restore(tt.before.Published())
			whole := restored.Confirm(l, tt.lists)
			if (whole != nil) != tt.want {
				t.Fatalf("confirmed: %v, want %v", whole != nil, tt.want)
			}
			if whole == nil {
				return
			}
			if diff := cmp.Diff(tt.before.Status, whole, protocmp.Transform()); diff != "" {
				t.Errorf("what was observed, and what was confirmed (-observed +confirmed):\n%s", diff)
			}
			next, changes := restored.Observe(whole)
			if len(changes) > 0 || !next.Inspected() || next.Restored() {
				t.Errorf("the confirmation makes the events %v", format(changes))
			}
		})
	}
}
