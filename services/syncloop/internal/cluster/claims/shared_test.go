package claims

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
)

// siteObjects are what the configmux of a site has. What is not in it is not known.
type siteObjects map[key]runtime.Object

// notKnown is the error for an object that is not known.
type notKnown struct{}

func (notKnown) Error() string { return "not known yet" }
func (notKnown) Unknown()      {}

func found[T runtime.Object](s siteObjects, k key) (T, error) {
	var none T
	object, known := s[k]
	switch typed, is := object.(T); {
	case is:
		return typed, nil
	case known:
		return none, notFound(k)
	}
	return none, notKnown{}
}

func (s siteObjects) Claim(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return found[*v1.PersistentVolumeClaim](s, key{kind: claimKind, namespace: namespace, name: name})
}

func (s siteObjects) Volume(name string) (*v1.PersistentVolume, error) {
	return found[*v1.PersistentVolume](s, key{kind: volumeKind, name: name})
}

func (s siteObjects) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	return found[*v1.Secret](s, key{kind: secretKind, namespace: namespace, name: name})
}

// boundClaim returns the claim "data", bound to the volume "disk", in a version.
func boundClaim(version string) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "data", UID: "c", ResourceVersion: version,
	}}
	c.Spec.VolumeName, c.Status.Phase = "disk", v1.ClaimBound
	return c
}

// TestClaimsOfASiteComeFromItsConfigmux: without a request to the API server, which this test does not have, a pod gets
// its claim, the volume and the secret as soon as configmux has them, and is told so.
func TestClaimsOfASiteComeFromItsConfigmux(t *testing.T) {
	data, disk := key{kind: claimKind, namespace: "shop", name: "data"}, key{kind: volumeKind, name: "disk"}
	site := siteObjects{}
	told := map[types.UID]int{}
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	c := NewCluster(Config{
		NodeName: "n1", Clock: clock, Shared: site, Changed: func(uid types.UID) { told[uid]++ },
	})
	pod := claimingPod("web")
	c.Use(pod)
	asked := func() (*v1.PersistentVolume, error) {
		c.settle(t.Context(), data)
		c.settle(t.Context(), disk)
		for _, h := range c.held { // a pod waits for an answer that is not there yet, which takes time
			if !isClosed(h.answered) {
				close(h.answered)
			}
		}
		_, volume, err := c.Claim(t.Context(), pod, &pod.Spec.Volumes[0])
		return volume, err
	}
	var failure *Error
	if _, err := asked(); !errors.As(err, &failure) || failure.Cause != CauseUnknown {
		t.Errorf("an unknown claim: %v, want the cause %s", err, CauseUnknown)
	}
	site[data] = nil
	_, err := asked()
	if !errors.As(err, &failure) || failure.Cause != CauseMissing || !apierrors.IsNotFound(failure.err) {
		t.Errorf("a missing claim: %v, want the cause %s", err, CauseMissing)
	}
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk", ResourceVersion: "1"}}
	volume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: "c"}
	volume.Spec.NFS = &v1.NFSVolumeSource{Server: "files"}
	site[data], site[disk] = boundClaim("5"), volume
	before := told["web"]
	if got, err := asked(); err != nil || got.Name != "disk" {
		t.Errorf("got %v, %v, want the volume", got, err)
	}
	if told["web"] == before {
		t.Error("the pod was not told that its claim is there")
	}
	if _, err := c.Secret(t.Context(), "shop", "login"); !isUnknown(err) {
		t.Errorf("an unknown secret: %v", err)
	}
	login := key{kind: secretKind, namespace: "shop", name: "login"}
	site[login] = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "login"}}
	if got, err := c.Secret(t.Context(), "shop", "login"); err != nil || got.Name != "login" {
		t.Errorf("got %v, %v, want the secret", got, err)
	}

	// This node has changed the status of the claim, and configmux has not heard of it yet.
	c.saw(data, boundClaim("10"))
	for _, step := range []struct{ site, want string }{{"9", "10"}, {"11", "11"}} {
		site[data] = boundClaim(step.site)
		c.settle(t.Context(), data)
		if got := c.held[data].object.(*v1.PersistentVolumeClaim).ResourceVersion; got != step.want {
			t.Errorf("configmux has version %s, and the node uses %s, want %s", step.site, got, step.want)
		}
	}
}

// TestNoAnswerOfASiteIsNoAnswer: a caller waits for one as it does for the API server.
func TestNoAnswerOfASiteIsNoAnswer(t *testing.T) {
	k := key{kind: claimKind, namespace: "shop", name: "data"}
	c := NewCluster(Config{
		NodeName: "n1", Clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0)), Shared: siteObjects{},
	})
	c.Use(claimingPod("web"))
	c.settle(t.Context(), k)
	if isClosed(c.held[k].answered) {
		t.Error("callers do not wait for an unknown claim")
	}
}
