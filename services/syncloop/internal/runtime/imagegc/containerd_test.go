package imagegc_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagegc"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/registry"
)

// TestOnContainerd reports a full disk on a real runtime. Images of containers stay, and so do the sandbox image and
// the bundled images, which are pinned. The others are removed and can be pulled again.
func TestOnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	containerd := harness.StartContainerd(t)
	reg := registry.Start(t, filepath.Join(harness.BinDir(t), "images", "hello.tar"))
	r := newRig(t, containerd.Endpoint, imagegc.Policy{HighPercent: 85, LowPercent: 0, MinAge: 2 * time.Minute})
	used, unused := reg.Image("used"), reg.Image("unused")
	for _, image := range []string{used, unused} {
		if _, err := r.images.PullImage(r.ctx, &runtimeapi.ImageSpec{Image: image}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "ns", Uid: "uid"},
	}
	sandbox, err := r.runtime.RunPodSandbox(r.ctx, config, "")
	if err != nil {
		t.Fatal(err)
	}
	container, err := r.runtime.CreateContainer(r.ctx, sandbox, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: used}, Args: []string{"sleep"},
	}, config)
	if err != nil {
		t.Fatal(err)
	}
	everything := []string{unused, used, harness.HelloImage, harness.PauseImage}
	const capacity = 1 << 40
	r.usage = imagegc.Usage{Capacity: capacity}
	r.Round(r.ctx)
	wantImages(t, r, everything...) // too young
	r.clock.Step(time.Hour)
	r.disk(capacity)
	r.Round(r.ctx)
	wantImages(t, r, everything...)
	r.disk(0)
	r.Round(r.ctx)
	wantImages(t, r, used, harness.HelloImage, harness.PauseImage)

	if err := r.runtime.StartContainer(r.ctx, container); err != nil {
		t.Errorf("a container whose image was kept: %v", err)
	}
	if _, err := r.images.PullImage(r.ctx, &runtimeapi.ImageSpec{Image: unused}, nil, nil); err != nil {
		t.Errorf("an image that was removed: %v", err)
	}
	real, err := imagegc.DiskUsage(filepath.Join(containerd.StateDir))
	if err != nil || real.Percent() < 0 || real.Percent() > 100 {
		t.Errorf("%+v: DiskUsage() error = %v, want Percent at least 0 and Percent at most 100", real, err)
	}
}

// wantImages compares the runtime's images by their tags.
func wantImages(t *testing.T, r *rig, want ...string) {
	t.Helper()
	list, err := r.images.ListImages(r.ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, image := range list {
		got = append(got, image.GetRepoTags()...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("the images are %q, want %q\n%s", got, want, r.logged())
	}
}
