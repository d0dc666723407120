package imagegc_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestTheDiskIsBroughtDownToTheLowThreshold(t *testing.T) {
	r, _ := onFake(t, kubelets, "a", "b", "c", "d")
	c, _ := r.run("c")
	r.run("d")
	r.Round(r.ctx) // first observation of all images, c and d are in use
	r.remove(c)
	r.disk(151 + 9)
	r.round(5, "a b c d") // 84 %
	r.disk(60)
	r.round(5, "c d") // 140 bytes down to 80 %: two images that were never used
	r.wantCount("kubelet_image_garbage_collected_total", "space", 2)
	r.wantCount("quartet_image_collection_errors_total", "FreeDiskSpaceFailed", 0)
	r.disk(150)
	r.round(5, "d") // 50 bytes more
	r.wantCount("kubelet_image_garbage_collected_total", "space", 3)
}

func TestTooFewImagesAreAFailure(t *testing.T) {
	r, _ := onFake(t, kubelets, "a", "b")
	r.run("b")
	r.Round(r.ctx)
	r.disk(0)
	r.round(5, "b")
	r.wantCount("quartet_image_collection_errors_total", "FreeDiskSpaceFailed", 1)
	if log := r.logged(); !strings.Contains(log, "100 % of 0.0 GiB of the image file system are used, and the removal of unused images has freed 100 of 200 bytes") {
		t.Errorf("the log is\n%s\nwant text with %q",
			log,
			"100 % of 0.0 GiB of the image file system are used, and the removal of unused images has freed 100 of 200 bytes")
	}
}

func TestAnImageIsKeptWhileItIsYoung(t *testing.T) {
	r, fake := onFake(t, kubelets, "a")
	r.disk(0)
	r.round(0, "a")
	fake.AddImage("b", 100)
	r.round(1, "a b")
	r.round(1, "b")
	r.round(1, "")
}

func TestAnImageIsKeptWhileItIsNeeded(t *testing.T) {
	for name, need := range map[string]func(*rig, *fakecri.Server){
		"by a container that runs": func(r *rig, _ *fakecri.Server) { r.run("a") },
		"by a container that has ended": func(r *rig, fake *fakecri.Server) {
			container, _ := r.run("a")
			if err := r.runtime.StartContainer(r.ctx, container); err != nil {
				r.t.Fatal(err)
			}
			fake.Exit(container, 1)
		},
		"by who is about to make a container of it": func(r *rig, _ *fakecri.Server) {
			r.clock.Step(50 * time.Minute)
			r.use(id("a"))
		},
		"by the runtime itself": func(_ *rig, fake *fakecri.Server) { fake.Pin("a") },
	} {
		t.Run(name, func(t *testing.T) {
			r, fake := onFake(t, imagegc.Policy{HighPercent: 85, LowPercent: 80, MaxAge: 30 * time.Minute}, "a", "b")
			r.Round(r.ctx)
			need(r, fake)
			r.disk(0)
			r.round(9, "a")
		})
	}
}

func TestAnImageIsKeptWhileAContainerMountsIt(t *testing.T) {
	r, _ := onFake(t, imagegc.Policy{HighPercent: 85, LowPercent: 80}, "a", "b", "c", "d")
	r.run("a", id("b"), id("c"))
	r.disk(0)
	r.round(9, "a b c")
}

// TestAnImageThatIsAskedForMeanwhileIsKept checks that another image is removed in its place.
func TestAnImageThatIsAskedForMeanwhileIsKept(t *testing.T) {
	r, _ := onFake(t, kubelets, "a", "b", "c")
	r.Round(r.ctx)
	r.onRetire = func(image string) {
		if image == id("a") {
			r.clock.Step(time.Millisecond)
			r.use(image)
		}
	}
	r.disk(110)
	r.round(5, "a c")
}

func TestAnImageThatWasUsedLaterGoesLater(t *testing.T) {
	r, _ := onFake(t, kubelets, "a", "b")
	r.use(id("a")) // returned to a caller whose container existed for less than a round
	r.round(20, "a b")
	r.disk(110)
	r.round(5, "a")
}

// TestAnImageThatCannotBeRemovedMakesWay checks that the next image is removed, and that the failure is reported.
func TestAnImageThatCannotBeRemovedMakesWay(t *testing.T) {
	r, fake := onFake(t, kubelets, "a", "b", "c")
	r.Round(r.ctx)
	fake.Fail("RemoveImage", id("a"), -1, status.Error(codes.Internal, "the disk is read-only"))
	r.disk(110)
	r.round(5, "a c")
	r.wantCount("kubelet_image_garbage_collected_total", "space", 1)
	r.wantCount("quartet_image_collection_errors_total", "ImageGCFailed", 1)
	if log := r.logged(); !strings.Contains(log, "remove image sha256:a: rpc error: code = Internal desc = the disk is read-only") {
		t.Errorf("the log is\n%s\nwant text with %q",
			log, "remove image sha256:a: rpc error: code = Internal desc = the disk is read-only")
	}
}

func TestAnImageThatIsUnusedForTooLongGoes(t *testing.T) {
	r, _ := onFake(t, imagegc.Policy{HighPercent: 100, MinAge: 2 * time.Minute, MaxAge: time.Hour}, "a", "b")
	b, _ := r.run("b")
	r.Round(r.ctx)
	r.disk(0) // irrelevant for this policy
	r.round(60, "a b")
	r.remove(b)
	r.round(1, "b")
	r.round(59, "b")
	r.round(1, "")
	r.wantCount("kubelet_image_garbage_collected_total", "age", 2)
	r.wantCount("kubelet_image_garbage_collected_total", "space", 0)
}

// TestImagesRemovedForTheirAgeAreNotCountedAsFreedSpace checks that the usage is read after removals by age.
func TestImagesRemovedForTheirAgeAreNotCountedAsFreedSpace(t *testing.T) {
	r, _ := onFake(t, imagegc.Policy{
		HighPercent: 85, LowPercent: 80, MinAge: 2 * time.Minute, MaxAge: time.Hour,
	}, "a", "b", "c")
	r.round(50, "a b c")
	r.use(id("b"))
	r.use(id("c"))
	r.disk(110)
	r.round(20, "c")
	r.wantCount("kubelet_image_garbage_collected_total", "age", 1)
	r.wantCount("kubelet_image_garbage_collected_total", "space", 1)
}

// TestAFailureIsLoggedTwice checks that the first and the second consecutive failure are logged, and no further ones
// until a success.
func TestAFailureIsLoggedTwice(t *testing.T) {
	for name, fail := range map[string]func(*rig, *fakecri.Server) (mend func()){
		"no list of images": func(_ *rig, fake *fakecri.Server) func() {
			return fake.Fail("ListImages", "", -1, status.Error(codes.Unavailable, "no"))
		},
		"no list of containers": func(_ *rig, fake *fakecri.Server) func() {
			return fake.Fail("ListContainers", "", -1, status.Error(codes.Unavailable, "no"))
		},
		"no file system": func(_ *rig, fake *fakecri.Server) func() {
			return fake.Fail("ImageFsInfo", "", -1, status.Error(codes.Unavailable, "no"))
		},
		"a file system that fails": func(r *rig, _ *fakecri.Server) func() {
			r.failDisk(errors.New("no"))
			return func() { r.failDisk(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, fake := onFake(t, kubelets, "a")
			mend := fail(r, fake)
			for i, want := range []string{"WARN", "ERROR", "", ""} {
				r.clock.Step(5 * time.Minute)
				r.Round(r.ctx)
				if log := r.logged(); (want == "") != (log == "") || !strings.Contains(log, "level="+want) && want != "" {
					t.Errorf("round %d logs %q, want %s", i+1, log, want)
				}
			}
			r.wantCount("quartet_image_collection_errors_total", "ImageGCFailed", 4)
			mend()
			r.Round(r.ctx)
			if log := r.logged(); !strings.Contains(log, "level=INFO") {
				t.Errorf("after a success the log is %q", log)
			}
			r.Round(r.ctx)
			if log := r.logged(); log != "" {
				t.Errorf("and then %q, want an empty text", log)
			}
		})
	}
}

// TestRepeatedFailuresAreOneEvent checks that a single failure is no event, and that consecutive failures are one event
// until a success.
func TestRepeatedFailuresAreOneEvent(t *testing.T) {
	r, fake := onFake(t, kubelets, "a")
	for range 2 {
		mend := fake.Fail("ListImages", "", -1, status.Error(codes.Unavailable, "the runtime is away"))
		for round := range 5 {
			r.Round(r.ctx)
			got := r.events()
			if one := len(got) == 1 && strings.HasPrefix(got[0], "ImageGCFailed: ") && strings.Contains(got[0], "the runtime is away"); one != (round == 1) || len(got) > 1 {
				t.Errorf("round %d: events %q", round, got)
			}
		}
		mend()
		r.Round(r.ctx)
	}
}

// TestADiskThatStaysFullIsAnEventAtOnceAndThenAnother checks that the second event is that of any repeated failure:
// each is recorded once.
func TestADiskThatStaysFullIsAnEventAtOnceAndThenAnother(t *testing.T) {
	for reason, usage := range map[string]imagegc.Usage{"FreeDiskSpaceFailed": {Capacity: 1000}, "InvalidDiskCapacity": {}} {
		r, _ := onFake(t, kubelets)
		r.usage = usage
		var got []string
		for range 4 {
			r.Round(r.ctx)
			for _, event := range r.events() {
				reason, _, _ := strings.Cut(event, ": ")
				got = append(got, reason)
			}
		}
		if want := []string{reason, "ImageGCFailed"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
	}
}

func TestAFileSystemWithoutASizeIsAFailure(t *testing.T) {
	r, _ := onFake(t, kubelets, "a")
	r.usage = imagegc.Usage{}
	r.Round(r.ctx)
	r.wantCount("quartet_image_collection_errors_total", "InvalidDiskCapacity", 1)
}

func TestARoundIsMadeEveryFiveMinutes(t *testing.T) {
	r, fake := onFake(t, kubelets, "a")
	ctx, stop := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for rounds := 1; rounds < 4; rounds++ {
		eventually.That(t, "a round", func() bool { return fake.Count("ListImages", "") >= rounds })
		r.clock.Step(5*time.Minute - time.Second)
		if got := fake.Count("ListImages", ""); got > rounds {
			t.Errorf("%d rounds, want %d", got, rounds)
		}
		r.clock.Step(time.Second)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAPolicyThatRemovesNothingMakesNoCalls(t *testing.T) {
	r, fake := onFake(t, imagegc.Policy{HighPercent: 100, LowPercent: 80, MinAge: 2 * time.Minute}, "a")
	if err := r.Run(r.ctx); err != nil {
		t.Error(err)
	}
	if got := fake.Count("ListImages", ""); got != 0 {
		t.Errorf("%d rounds, want 0", got)
	}
}

func TestDiskUsageIsTheFileSystems(t *testing.T) {
	usage, err := imagegc.DiskUsage(t.TempDir())
	if err != nil || usage.Capacity <= 0 || usage.Available > usage.Capacity {
		t.Errorf("DiskUsage() = %+v, %v, want Capacity more than 0 and Available at most %v", usage, err, usage.Capacity)
	}
	if _, err := imagegc.DiskUsage("/there/is/no/such/directory"); err == nil {
		t.Error("a missing directory has a size")
	}
}
