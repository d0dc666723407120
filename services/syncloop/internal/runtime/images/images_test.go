package images_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/test/criproxy"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// TestAHangingRequestDelaysOnlyItsCaller checks that callers share a lookup of the same image, but are not blocked
// by one that hangs.
func TestAHangingRequestDelaysOnlyItsCaller(t *testing.T) {
	const image = "registry.test/present:1"
	fake := fakecri.New(t)
	fake.AddImage(image, 5)
	proxy, err := criproxy.Start(fake.Endpoint(), filepath.Join(harness.ShortDir(t), "proxy.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	r := onRuntime(t, proxy.Endpoint())
	hung := proxy.Hang("ImageStatus", criproxy.Times(1))
	ask := func(pod string) chan error {
		answered := make(chan error, 1)
		go func() {
			_, err := r.ensure(pod, image, v1.PullIfNotPresent)
			answered <- err
		}()
		return answered
	}
	first := ask("first")
	eventually.That(t, "the first question hangs", func() bool { return hung.Waiting() == 1 })
	second := ask("second")
	eventually.That(t, "the second waits for its answer", r.clock.HasWaiters)
	r.clock.Step(time.Second)
	if err := <-second; err != nil {
		t.Error(err)
	}
	if err := <-ask("third"); err != nil { // at once: it gets the result of the second lookup
		t.Error(err)
	}
	hung.Lift()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if got := fake.Count("ImageStatus", image); got != 2 {
		t.Errorf("the runtime was called %d times, want by the first and the second", got)
	}
}

// TestAnImageThatNamesNoUserIsRoots checks that runAsNonRoot refuses such an image.
func TestAnImageThatNamesNoUserIsRoots(t *testing.T) {
	r := newRig(t)
	r.cri.AddImage("registry.test/present:1", 5)
	image, err := r.ensure("web", "registry.test/present:1", v1.PullIfNotPresent)
	if err != nil {
		t.Fatal(err)
	}
	if uid := image.User.UID; uid == nil || *uid != 0 || image.User.Name != "" {
		t.Errorf("it runs as %+v, want root", image.User)
	}
}

func TestAnImageIsPulledByItsPolicy(t *testing.T) {
	const present, absent = "registry.test/present:1", "registry.test/absent:1"
	for _, c := range []struct {
		image  string
		policy v1.PullPolicy
		reason string
		pulls  int
		events []string
	}{
		{present, v1.PullIfNotPresent, "", 0, []string{
			`Normal Pulled web/main: Container image "registry.test/present:1" already present on machine and can be accessed by the pod`,
		}},
		{present, v1.PullNever, "", 0, []string{
			`Normal Pulled web/main: Container image "registry.test/present:1" already present on machine and can be accessed by the pod`,
		}},
		{present, v1.PullAlways, "", 1, []string{
			`Normal Pulling web/main: Pulling image "registry.test/present:1"`,
			`Normal Pulled web/main: Successfully pulled image "registry.test/present:1" in 0s (0s including waiting). Image size: 1048576 bytes.`,
		}},
		{absent, v1.PullIfNotPresent, "", 1, []string{
			`Normal Pulling web/main: Pulling image "registry.test/absent:1"`,
			`Normal Pulled web/main: Successfully pulled image "registry.test/absent:1" in 0s (0s including waiting). Image size: 1048576 bytes.`,
		}},
		{absent, v1.PullAlways, "", 1, []string{
			`Normal Pulling web/main: Pulling image "registry.test/absent:1"`,
			`Normal Pulled web/main: Successfully pulled image "registry.test/absent:1" in 0s (0s including waiting). Image size: 1048576 bytes.`,
		}},
		{absent, v1.PullNever, images.ReasonNeverPull, 0, []string{
			`Warning ErrImageNeverPull web/main: Container image "registry.test/absent:1" is not present with pull policy of Never`,
			`Warning Failed web/main: Error: ErrImageNeverPull`,
		}},
	} {
		t.Run(fmt.Sprintf("%s %s", c.policy, c.image), func(t *testing.T) {
			r := newRig(t, serial, recording(t.TempDir(), ""))
			r.cri.AddImage(present, 5)
			image, err := r.ensure("web", c.image, c.policy)
			if failure := (*images.Error)(nil); errors.As(err, &failure) != (c.reason != "") ||
				(failure != nil && failure.Reason != c.reason) {
				t.Fatalf("error %v, want %q", err, c.reason)
			}
			if err == nil && image.Ref != "sha256:"+c.image {
				t.Errorf("the image is %q", image.Ref)
			}
			if got := r.cri.Count("PullImage", ""); got != c.pulls {
				t.Errorf("%d pulls, want %d", got, c.pulls)
			}
			r.wantEvents(c.events...)
		})
	}
}

func TestAnImageWithoutATagIsTheLatest(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	if image, err := r.ensure("web", "registry.test/app", v1.PullIfNotPresent); err != nil || image.Ref != "sha256:registry.test/app:latest" {
		t.Errorf("image.Ref = %q, %v, want %q", image.Ref, err, "sha256:registry.test/app:latest")
	}
}

func TestAnInvalidNameIsRefusedBeforeAnyCall(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	const message = `Failed to apply default image tag "not a name": couldn't parse image name "not a name": invalid reference format`
	r.want("web", "not a name", v1.PullAlways, images.ReasonInvalidName, message)
	r.wantEvents("Warning InspectFailed web/main: "+message, "Warning Failed web/main: Error: InvalidImageName")
	if r.cri.Count("PullImage", "") > 0 || r.cri.Count("ImageStatus", "") > 0 {
		t.Error("the runtime was called")
	}
}

func TestAFailedInspectionIsReported(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	r.cri.Fail("ImageStatus", "", -1, status.Error(codes.Internal, "the disk is gone"))
	const message = `Failed to inspect image "registry.test/app:1": rpc error: code = Internal desc = the disk is gone`
	r.want("web", "registry.test/app:1", v1.PullIfNotPresent, images.ReasonInspect, message)
	r.wantEvents("Warning InspectFailed web/main: "+message, "Warning Failed web/main: Error: ImageInspectError")
}

// TestAFailedPullBacksOff checks a back-off of 10 s, doubled after each failure up to 5 min, for each pod and image.
func TestAFailedPullBacksOff(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	const name = "registry.test/app:1"
	mend := r.cri.Fail("PullImage", name, -1, status.Error(codes.NotFound, "no such image"))
	const why = `failed to pull image "registry.test/app:1": rpc error: code = NotFound desc = no such image`
	for i, delay := range []time.Duration{
		10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second,
		5 * time.Minute, 5 * time.Minute,
	} {
		r.want("web", name, v1.PullIfNotPresent, images.ReasonPull, why)
		if i == 0 {
			r.wantEvents(`Normal Pulling web/main: Pulling image "registry.test/app:1"`,
				`Warning Failed web/main: Failed to pull image "registry.test/app:1": rpc error: code = NotFound desc = no such image`,
				"Warning Failed web/main: Error: ErrImagePull")
		}
		r.clock.Step(delay - time.Millisecond)
		r.wantEventsOf(func() {
			_, err := r.ensure("web", name, v1.PullIfNotPresent)
			failure := (*images.Error)(nil)
			if !errors.As(err, &failure) || failure.Reason != images.ReasonPullBackOff ||
				failure.RetryAfter != time.Millisecond {
				t.Fatalf("after %d failures, a millisecond before %s: %v", i+1, delay, err)
			}
			if want := `Back-off pulling image "registry.test/app:1": ErrImagePull: ` + why; failure.Message != want {
				t.Errorf("message %q, want %q", failure.Message, want)
			}
		}, `Normal BackOff web/main: Back-off pulling image "registry.test/app:1"`, "Warning Failed web/main: Error: ImagePullBackOff")
		r.clock.Step(time.Millisecond)
	}
	r.want("web", name, v1.PullIfNotPresent, images.ReasonPull, why)
	r.want("other", name, v1.PullIfNotPresent, images.ReasonPull, why) // not delayed by the first pod's back-off
	r.want("web", "registry.test/fine:1", v1.PullIfNotPresent, "", "")
	mend()
	r.want("third", name, v1.PullIfNotPresent, "", "")
	r.want("web", name, v1.PullIfNotPresent, "", "") // the image is present now
}

// wantEventsOf compares the events of work.
func (r *rig) wantEventsOf(work func(), want ...string) {
	r.t.Helper()
	r.mu.Lock()
	r.events = nil
	r.mu.Unlock()
	work()
	r.wantEvents(want...)
}

// TestASuccessEndsTheBackOff checks that the next failure, with the policy Always, begins with 10 s again.
func TestASuccessEndsTheBackOff(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	const name = "registry.test/app:1"
	r.cri.Fail("PullImage", name, 2, status.Error(codes.NotFound, "no such image"))
	for _, wait := range []time.Duration{10 * time.Second, 20 * time.Second} {
		if _, err := r.ensure("web", name, v1.PullAlways); err == nil {
			t.Fatal("it was pulled")
		}
		r.clock.Step(wait)
	}
	r.want("web", name, v1.PullAlways, "", "")
	r.cri.Fail("PullImage", name, 1, status.Error(codes.NotFound, "no such image"))
	_, err := r.ensure("web", name, v1.PullAlways)
	if failure := (*images.Error)(nil); !errors.As(err, &failure) || failure.RetryAfter != 10*time.Second {
		t.Errorf("ensure(web) error = %v, want a %T and failure.RetryAfter %v", err, failure, 10*time.Second)
	}
}

// TestTheRuntimesOwnWordsForAFailure checks that they become the reason, as in the kubelet.
func TestTheRuntimesOwnWordsForAFailure(t *testing.T) {
	for reason, want := range map[string]string{
		"RegistryUnavailable":       "image pull failed for registry.test/app:1 because the registry is unavailable: connection refused",
		"SignatureValidationFailed": "image pull failed for registry.test/app:1 because the signature validation failed: connection refused",
	} {
		r := newRig(t, serial, recording(t.TempDir(), ""))
		r.cri.Fail("PullImage", "", -1, status.Error(codes.Unknown, reason+": connection refused"))
		r.want("web", "registry.test/app:1", v1.PullAlways, reason, want)
	}
}

// pullAll starts a pull of each image for its own pod. wait waits for their ends.
func (r *rig) pullAll(names ...string) (wait func()) {
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			if _, err := r.ensure("pod-of-"+name, name, v1.PullIfNotPresent); err != nil {
				r.t.Errorf("%s: %v", name, err)
			}
		})
	}
	return all.Wait
}

func TestAsManyPullsAtOnceAsAreAllowed(t *testing.T) {
	names := []string{"registry.test/a:1", "registry.test/b:1", "registry.test/c:1", "registry.test/d:1", "registry.test/e:1"}
	for name, c := range map[string]struct {
		change func(*images.Config)
		want   int
	}{
		"serial":     {serial, 1},
		"two":        {func(cfg *images.Config) { cfg.MaxParallel = 2 }, 2},
		"four":       {func(cfg *images.Config) { cfg.MaxParallel = 4 }, 4},
		"no limit":   {func(*images.Config) {}, len(names)},
		"serial two": {func(cfg *images.Config) { cfg.Serial, cfg.MaxParallel = true, 2 }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.change)
			gate := r.cri.Hang("PullImage", "")
			wait := r.pullAll(names...)
			eventually.That(t, fmt.Sprintf("%d pulls are under way", c.want), func() bool { return gate.Waiting() == c.want })
			// All pulls have been started; those without a slot wait.
			eventually.That(t, "all have asked", func() bool { return r.cri.Count("ImageStatus", "") >= len(names) })
			gate.Open()
			wait()
			if got := r.cri.MaxInFlight("PullImage"); got != c.want {
				t.Errorf("%d pulls at once, want %d", got, c.want)
			}
		})
	}
}

// TestAPullThatHangsDelaysNoImageThatIsThere also covers serial pulls, and a stop of the waiting pod.
func TestAPullThatHangsDelaysNoImageThatIsThere(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	r.cri.AddImage("registry.test/present:1", 1)
	gate := r.cri.Hang("PullImage", "registry.test/hangs:1")
	ctx, stop := context.WithCancel(r.ctx)
	ended := make(chan error, 2)
	for _, name := range []string{"first", "second"} {
		go func() {
			_, err := r.Ensure(ctx, images.Request{Pod: pod(name), Container: "main", Image: "registry.test/hangs:1", Policy: v1.PullAlways})
			ended <- err
		}()
	}
	eventually.That(t, "the pull hangs", func() bool { return gate.Waiting() == 1 })
	r.want("web", "registry.test/present:1", v1.PullIfNotPresent, "", "")
	stop()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("an interrupted pull ended with %v, want %v", err, context.Canceled)
		}
	}
	r.want("web", "registry.test/other:1", v1.PullAlways, "", "") // it has a slot now
	gate.Open()
	// an interrupted pull is no failure: there is no back-off
	r.want("first", "registry.test/hangs:1", v1.PullAlways, "", "")
}

// TestAWaitForTheTurnIsInTheEvent checks that the event has the duration of the pull itself, and that with the wait.
func TestAWaitForTheTurnIsInTheEvent(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	first := r.cri.Hang("PullImage", "registry.test/a:1")
	waitA := r.pullAll("registry.test/a:1")
	eventually.That(t, "the first pull is under way", func() bool { return first.Waiting() == 1 })
	second := r.cri.Hang("PullImage", "registry.test/b:1")
	waitB := r.pullAll("registry.test/b:1")
	eventually.That(t, "the second waits for its turn", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.events) == 2
	})
	r.mu.Lock()
	r.events = nil
	r.mu.Unlock()
	r.clock.Step(3 * time.Second)
	first.Open()
	waitA()
	eventually.That(t, "the second is under way", func() bool { return second.Waiting() == 1 })
	r.clock.Step(1500 * time.Millisecond)
	second.Open()
	waitB()
	r.wantEvents(
		`Normal Pulled pod-of-registry.test/a:1/main: Successfully pulled image "registry.test/a:1" in 3s (3s including waiting). Image size: 1048576 bytes.`,
		`Normal Pulled pod-of-registry.test/b:1/main: Successfully pulled image "registry.test/b:1" in 1.5s (4.5s including waiting). Image size: 1048576 bytes.`)
}

func TestAPodThatGetsAnImageUsesIt(t *testing.T) {
	r := newRig(t, serial, recording(t.TempDir(), ""))
	const name, ref = "registry.test/app:1", "sha256:registry.test/app:1"
	before := r.clock.Now()
	if !r.UsedAt(ref).IsZero() || !r.Retire(ref, before) {
		t.Fatal("an image without a request counts as used")
	}
	r.clock.Step(time.Second)
	r.want("web", name, v1.PullIfNotPresent, "", "")
	if at := r.UsedAt(ref); !at.Equal(r.clock.Now()) {
		t.Errorf("used at %v", at)
	}
	if r.Retire(ref, before) {
		t.Error("Retire permits the removal of an image that a caller got in the meantime")
	}
	if !r.Retire(ref, r.clock.Now()) {
		t.Error("Retire refuses the removal of an image that no caller got since")
	}
	if _, err := r.cri.RemoveImage(r.ctx, removal(name)); err != nil {
		t.Fatal(err)
	}
	r.want("web", name, v1.PullIfNotPresent, "", "") // the image was cached for a second before, and is pulled again now
	if got := r.cri.Count("PullImage", name); got != 2 {
		t.Errorf("%d pulls, want 2", got)
	}
}
