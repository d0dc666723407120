package images_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/pullrecords"
)

// recording stores records in a directory.
func recording(root string, policy kubeletconfigv1beta1.ImagePullCredentialsVerificationPolicy) func(*images.Config) {
	return func(cfg *images.Config) {
		cfg.Records = pullrecords.New(pullrecords.Config{
			RootDir: root, Policy: pullrecords.Policy{Verification: policy}, Clock: cfg.Clock, Logger: cfg.Logger,
		})
	}
}

// askFor requests an image with a policy, and returns the error's text.
func (r *rig) askFor(podName, name string, policy v1.PullPolicy, secrets ...*v1.Secret) string {
	r.t.Helper()
	_, err := r.Ensure(r.ctx, images.Request{
		Pod: pod(podName), Container: "main", Image: name, Policy: policy, Secrets: secrets,
	})
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestAPodGetsAnotherPodsImageOnlyWithCredentialsOfItsOwn also covers a restart of the process.
func TestAPodGetsAnotherPodsImageOnlyWithCredentialsOfItsOwn(t *testing.T) {
	const name = "registry.test/shop/web:1"
	root := t.TempDir()
	r := newRig(t, recording(root, kubeletconfigv1beta1.NeverVerifyPreloadedImages))
	r.cri.Protect(name, "pod", "pod-secret")
	secret := pullSecret("a", v1.SecretTypeDockerConfigJson, ".dockerconfigjson", configJSON("registry.test=pod"))
	if got := r.askFor("owner", name, v1.PullIfNotPresent, secret); got != "" {
		t.Fatalf("askFor() = %q, want no error", got)
	}
	next := onRuntime(t, r.cri.Endpoint(), recording(root, kubeletconfigv1beta1.NeverVerifyPreloadedImages))
	next.cri = r.cri
	for what, r := range map[string]*rig{"the same process": r, "the next process": next} {
		pulls := r.cri.Count("PullImage", name)
		if got := r.askFor("other-"+what[:8], name, v1.PullIfNotPresent); !strings.HasPrefix(got, "ErrImagePull: ") || r.cri.Count("PullImage", name) != pulls+1 {
			t.Errorf("%s: a pod without a secret: %q after %d pulls", what, got, r.cri.Count("PullImage", name)-pulls)
		}
		if got := r.askFor("never", name, v1.PullNever); !strings.HasPrefix(got, "ErrImageNeverPull: ") {
			t.Errorf("%s: a pod without a secret that never pulls: %q", what, got)
		}
		pulls = r.cri.Count("PullImage", name)
		if got := r.askFor("owner", name, v1.PullIfNotPresent, secret); got != "" || r.cri.Count("PullImage", name) != pulls {
			t.Errorf("%s: a pod with the secret: %q after %d pulls", what, got, r.cri.Count("PullImage", name)-pulls)
		}
	}
}

// TestImagesThatEveryPodMayUse checks preloaded images, and those that were pulled with the node's credentials or
// none.
func TestImagesThatEveryPodMayUse(t *testing.T) {
	r := newRig(t, recording(t.TempDir(), kubeletconfigv1beta1.NeverVerifyPreloadedImages),
		withCredentials(&runtimeapi.AuthConfig{Username: "node", Password: "node-secret"}))
	r.cri.AddImage("registry.test/preloaded:1", 1)
	r.cri.Protect("registry.test/shop/web:1", "node", "node-secret")
	for _, name := range []string{"registry.test/preloaded:1", "registry.test/shop/web:1"} {
		for _, podName := range []string{"one", "two"} {
			if got := r.askFor(podName, name, v1.PullIfNotPresent); got != "" {
				t.Errorf("%s for pod %s: %s, want an empty text", name, podName, got)
			}
		}
	}
	if got := r.cri.Count("PullImage", "registry.test/shop/web:1"); got != 1 {
		t.Errorf("an image of the node's credentials was pulled %d times", got)
	}
}

func TestWithoutRecordsEveryPodHasEveryImage(t *testing.T) {
	const name = "registry.test/shop/web:1"
	r := newRig(t)
	r.cri.Protect(name, "pod", "pod-secret")
	secret := pullSecret("a", v1.SecretTypeDockerConfigJson, ".dockerconfigjson", configJSON("registry.test=pod"))
	if got := r.askFor("owner", name, v1.PullIfNotPresent, secret) + r.askFor("other", name, v1.PullIfNotPresent); got != "" {
		t.Errorf("askFor() = %q, want no error", got)
	}
}

// TestRecordsFollowTheRuntimesImages checks the records of interrupted pulls and of removed images.
func TestRecordsFollowTheRuntimesImages(t *testing.T) {
	const name = "registry.test/shop/web:1"
	root := t.TempDir()
	r := newRig(t, recording(root, kubeletconfigv1beta1.NeverVerifyPreloadedImages))
	book := pullrecords.New(pullrecords.Config{RootDir: root, Clock: r.clock})
	if err := book.Begin(name); err != nil { // by a process that was killed
		t.Fatal(err)
	}
	r.cri.AddImage(name, 1)
	r.cri.Protect(name, "pod", "pod-secret")
	client, err := r.services()
	if err != nil {
		t.Fatal(err)
	}
	connected := func(context.Context) (internalapi.ImageManagerService, error) { return client, nil }
	if err := r.Recover(r.ctx, connected); err != nil {
		t.Fatal(err)
	}
	files := func(dir string) int {
		found, err := filepath.Glob(filepath.Join(root, "image_manager", dir, "sha256-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	if files("pulling") != 0 || files("pulled") != 1 {
		t.Errorf("%d pulls and %d records are left", files("pulling"), files("pulled"))
	}
	if got := r.askFor("other", name, v1.PullIfNotPresent); !strings.HasPrefix(got, "ErrImagePull: ") {
		t.Errorf("every pod can use an image whose pull was interrupted: %q", got)
	}
	r.Left(r.ctx, nil, r.clock.Now().Add(time.Minute))
	if files("pulled") != 0 {
		t.Error("the record of the removed image exists")
	}
}

func TestAPullThatCannotBeRecordedIsNotMade(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "image_manager"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, recording(root, kubeletconfigv1beta1.NeverVerifyPreloadedImages))
	if got := r.askFor("web", "registry.test/a:1", v1.PullIfNotPresent); !strings.Contains(got, "failed to record image pull intent") || r.cri.Count("PullImage", "registry.test/a:1") != 0 {
		t.Errorf("askFor(web, registry.test/a:1) = %q, want text with %q and Count 0",
			got, "failed to record image pull intent")
	}
}
