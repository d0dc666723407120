package claims

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/test/eventually"
)

// claimingPod returns a pod with the claim "data".
func claimingPod(uid types.UID) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
	}
}

// TestAPodWaitsForALateAnswer has a request that other requests delay. A pod waits no longer than for a first answer
// after a request that has failed, and for an object that is known.
func TestAPodWaitsForALateAnswer(t *testing.T) {
	k := key{kind: claimKind, namespace: "shop", name: "data"}
	claim := &v1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.ResourceVersion = "shop", "data", "1"
	broken := errors.New("no route to host")
	for _, test := range []struct {
		name   string
		fails  error
		known  bool
		answer *v1.PersistentVolumeClaim
	}{
		{name: "late", answer: claim}, {name: "failed", fails: broken}, {name: "never"},
		{name: "known", known: true, answer: claim},
	} {
		fake := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
		c := NewCluster(Config{NodeName: "n1", Clock: fake})
		c.Use(claimingPod("web"))
		h := c.held[k]
		h.err = test.fails
		if test.known {
			h.known, h.object = true, claim
		}
		type result struct {
			got any
			err error
		}
		results := make(chan result, 1)
		go func() {
			got, err := c.get(t.Context(), k, "web")
			results <- result{got, err}
		}()
		waits := func() bool { return fake.HasWaiters() }
		eventually.That(t, "the pod waits", waits)
		fake.Step(firstAnswer)
		short := test.fails != nil || test.known
		if !short {
			eventually.That(t, "the pod waits on", waits)
		}
		switch {
		case short:
		case test.answer != nil:
			c.mu.Lock()
			c.note(k, h, test.answer, nil)
			close(h.answered)
			c.mu.Unlock()
		default:
			fake.Step(slowAnswer)
		}
		r := <-results
		if got, _ := r.got.(*v1.PersistentVolumeClaim); got != test.answer || !errors.Is(r.err, test.fails) {
			t.Errorf("%s: got %v, %v", test.name, r.got, r.err)
		}
	}
}

// TestAnAttachmentThatIsMissingIsWaitedFor checks that the first failure begins the requests for an attachment that was
// not requested before.
func TestAnAttachmentThatIsMissingIsWaitedFor(t *testing.T) {
	c := NewCluster(Config{NodeName: "n1", Clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0))})
	c.Use(claimingPod("web"))
	about := metav1.ObjectMeta{Namespace: "shop", Name: "data", ResourceVersion: "1"}
	data, disk := key{kind: claimKind, namespace: "shop", name: "data"}, key{kind: volumeKind, name: "disk"}
	c.note(data, c.held[data], &v1.PersistentVolumeClaim{
		ObjectMeta: about, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "disk"},
	}, nil)
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk", ResourceVersion: "1"}}
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}
	c.note(disk, c.held[disk], volume, nil)
	k := key{kind: attachmentKind, name: AttachmentName("d", "h", "n1")}
	_ = c.failed(k, &Error{Cause: CauseMissing})
	if h := c.held[k]; h == nil || !h.waiters["web"] || c.waiting != 1 {
		t.Errorf("held %+v, %d waited for; want the attachment, and the pod waiting for it", h, c.waiting)
	}
}
