package streamhealth_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/streamhealth"
)

// days is a stream with a fake clock.
type days struct {
	streamhealth.Stream
	t   *testing.T
	now time.Time
}

func open(t *testing.T) *days {
	t.Helper()
	d := &days{t: t, now: time.Unix(1000, 0)}
	d.Open()
	d.relied(true, "a stream that was never doubted")
	return d
}

func (d *days) relied(want bool, when string) {
	d.t.Helper()
	if d.Relied() != want {
		d.t.Fatalf("%s: relied on is %v, want %v", when, !want, want)
	}
}

// pass advances the clock in steps of a second, with announced changes, and returns the duration until the stream
// counts as reliable.
func (d *days) pass(limit time.Duration, announced int) time.Duration {
	for range announced {
		d.Announced()
	}
	for passed := time.Second; passed <= limit; passed += time.Second {
		d.now = d.now.Add(time.Second)
		if d.Review(d.now) {
			return passed
		}
	}
	return 0
}

func TestAChangeThatNoEventAnnouncedEndsTheTrust(t *testing.T) {
	d := open(t)
	d.Announced()
	if d.Review(d.now) {
		t.Error("a probation is over that never began")
	}
	d.Unannounced(d.now)
	d.relied(false, "after a change that was not announced")
	d.Close()
	d.Open()
	d.relied(false, "another stream of the same runtime")
}

func TestAStreamThatEndsIsNotReliedOn(t *testing.T) {
	d := open(t)
	d.Close()
	d.relied(false, "after its end")
	d.Open()
	d.relied(true, "when it is back")
}

func TestTrustComesBackWithEvidence(t *testing.T) {
	d := open(t)
	d.Unannounced(d.now)
	if took := d.pass(10*time.Minute, streamhealth.Evidence-1); took != 0 {
		t.Errorf("with too few changes announced it took %v", took)
	}
	if took := d.pass(time.Minute, 1); took != time.Second {
		t.Errorf("with the last evidence it took %v more", took)
	}
	d.relied(true, "after the probation")
}

func TestEachChangeThatWasNotAnnouncedBeginsTheProbationAgain(t *testing.T) {
	d := open(t)
	d.Unannounced(d.now)
	d.pass(50*time.Second, streamhealth.Evidence)
	if got := d.Unannounced(d.now); got != streamhealth.Probation {
		t.Errorf("within the probation it becomes %v, want %v", got, streamhealth.Probation)
	}
	if took := d.pass(2*time.Minute, 0); took != 0 {
		t.Errorf("what was announced before counted, after %v", took)
	}
	if took := d.pass(2*time.Minute, streamhealth.Evidence); took != time.Second {
		t.Errorf("it took %v, want %v", took, time.Second)
	}
}

func TestWithoutEvidenceTrustComesBackAfterTheLongestProbation(t *testing.T) {
	d := open(t)
	d.Unannounced(d.now)
	if took := d.pass(2*streamhealth.MaxProbation, 0); took != streamhealth.MaxProbation {
		t.Errorf("it took %v, want %v", took, streamhealth.MaxProbation)
	}
}

func TestARelapseDoublesTheProbation(t *testing.T) {
	d := open(t)
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		want *= time.Minute
		if got := d.Unannounced(d.now); got != want {
			t.Errorf("the probation is %v, want %v", got, want)
		}
		if took := d.pass(2*time.Hour, streamhealth.Evidence); took != want {
			t.Errorf("it took %v, want %v", took, want)
		}
	}
	d.now = d.now.Add(streamhealth.MaxProbation)
	if got := d.Unannounced(d.now); got != streamhealth.Probation {
		t.Errorf("after an hour of trust the probation is %v, want %v", got, streamhealth.Probation)
	}
}

func TestChangesThatAnEventAnnounces(t *testing.T) {
	const (
		ready    = lifecyclev1.SandboxState_SANDBOX_STATE_READY
		notReady = lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
		created  = lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
		running  = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
		exited   = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
		unknown  = lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
	)
	sandbox := func(state lifecyclev1.SandboxState) *lifecyclev1.PodStatus {
		return &lifecyclev1.PodStatus{Sandboxes: []*lifecyclev1.Sandbox{{Id: "s", State: state}}}
	}
	container := func(state lifecyclev1.ContainerState) *lifecyclev1.PodStatus {
		return &lifecyclev1.PodStatus{
			Containers: []*lifecyclev1.Container{{Id: "c", State: state, StartedAt: timestamppb.Now()}},
		}
	}
	neverRan := &lifecyclev1.PodStatus{Containers: []*lifecyclev1.Container{{Id: "c", State: exited}}}
	withIP := sandbox(ready)
	withIP.Ips, withIP.Sandboxes[0].Ips = []string{"10.0.0.1"}, []string{"10.0.0.1"}
	for name, tt := range map[string]struct {
		before, after *lifecyclev1.PodStatus
		want          bool
	}{
		"a sandbox comes up":                         {nil, sandbox(ready), true},
		"a sandbox that was never ready is left":     {nil, sandbox(notReady), false},
		"a sandbox ends":                             {sandbox(ready), sandbox(notReady), true},
		"a sandbox goes":                             {sandbox(notReady), &lifecyclev1.PodStatus{}, true},
		"an address":                                 {sandbox(ready), withIP, false},
		"a container is made":                        {&lifecyclev1.PodStatus{}, container(created), true},
		"a container starts":                         {container(created), container(running), true},
		"a container ends":                           {container(running), container(exited), true},
		"a container goes":                           {container(exited), &lifecyclev1.PodStatus{}, true},
		"a container that could not be started":      {container(created), neverRan, false},
		"a container that the runtime lost sight of": {container(running), container(unknown), false},
		"a container that it has found again":        {container(unknown), container(exited), false},
		"nothing":                                    {container(running), container(running), false},
	} {
		if got := streamhealth.Announceable(tt.before, tt.after); got != tt.want {
			t.Errorf("%s: announceable is %v, want %v", name, got, tt.want)
		}
	}
}
