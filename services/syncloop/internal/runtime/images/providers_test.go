package images_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
)

// provided returns credential providers: for each its entries of registries, as registry=user; users have the password
// USER-secret.
func provided(failures []error, providers ...[]string) func(*images.Config) {
	var found []imagecredentials.Given
	for _, entries := range providers {
		config := credentialprovider.DockerConfig{}
		for _, entry := range entries {
			registry, user, _ := strings.Cut(entry, "=")
			config[registry] = credentialprovider.DockerConfigEntry{Username: user, Password: user + "-secret"}
		}
		found = append(found, imagecredentials.Given{Config: config})
	}
	return func(cfg *images.Config) {
		cfg.Providers = func(_ context.Context, pod *v1.Pod, repository string) ([]imagecredentials.Given, []error) {
			if pod.Name != "web" || repository != "registry.test/shop/web" {
				return nil, []error{errors.New("asked for " + pod.Name + " and " + repository)}
			}
			return found, failures
		}
	}
}

// TestWhatProvidersGiveIsTriedLast checks the order: the most specific first, and for the same registry in the order of
// the providers.
func TestWhatProvidersGiveIsTriedLast(t *testing.T) {
	const name = "registry.test/shop/web:1"
	secret := pullSecret("a", v1.SecretTypeDockerConfigJson, ".dockerconfigjson", configJSON("registry.test=pod"))
	node := &runtimeapi.AuthConfig{Username: "node", Password: "node-secret"}
	providers := [][]string{{"registry.test=one", "*.test=star", "other.test=other", "ht tp://x=none"}, {"registry.test/shop=path", "registry.test=two"}}
	for taken, tries := range map[string]int{"pod": 1, "node": 2, "path": 3, "one": 4, "two": 5, "star": 6} {
		r := newRig(t, withCredentials(node), provided(nil, providers...))
		r.cri.Protect(name, taken, taken+"-secret")
		if got := r.pull(name, secret); got != "" || r.cri.Count("PullImage", name) != tries {
			t.Errorf("%s: after %d tries error %q, want %d tries", taken, r.cri.Count("PullImage", name), got, tries)
		}
	}
	r := newRig(t, withCredentials(node), provided(nil, providers...))
	r.cri.Protect(name, "other", "other-secret")
	if got := r.pull(name, secret); got == "" || r.cri.Count("PullImage", name) != 6 {
		t.Errorf("credentials of another registry: after %d tries error %q", r.cri.Count("PullImage", name), got)
	}
	checkNotLeaked(t, r, "-secret")
}

// TestAFailingProviderIsReported checks the event, and the reason of the waiting container if the pull fails. The image
// is pulled without the provider's credentials.
func TestAFailingProviderIsReported(t *testing.T) {
	const name = "registry.test/shop/web:1"
	failures := []error{errors.New(`credential provider "a": it hangs`), errors.New(`credential provider "b": it is gone`)}
	const output = `Warning FailedToRetrieveImageCredentials web/main: Unable to retrieve credentials for image "registry.test/shop/web:1": credential provider `
	r := newRig(t, provided(failures, []string{"registry.test=one"}))
	r.cri.Protect(name, "one", "one-secret")
	if got := r.pull(name); got != "" {
		t.Errorf("with the credentials of another one: %s", got)
	}
	r.wantEvents(output+`"a": it hangs. Attempting to pull the image may not succeed.`, output+`"b": it is gone. Attempting to pull the image may not succeed.`,
		`Normal Pulling web/main: Pulling image "registry.test/shop/web:1"`,
		`Normal Pulled web/main: Successfully pulled image "registry.test/shop/web:1" in 0s (0s including waiting). Image size: 1048576 bytes.`)
	r = newRig(t, provided(failures))
	r.cri.Protect(name, "one", "one-secret")
	const why = `(credential provider "a": it hangs; credential provider "b": it is gone)`
	if got := r.pull(name); !strings.HasPrefix(got, "ErrImagePull: ") || !strings.HasSuffix(got, why) {
		t.Errorf("error %q, want text beginning with %q and ending with %q", got, "ErrImagePull: ", why)
	}
	if got := r.pull(name); !strings.HasPrefix(got, "ImagePullBackOff: ") || !strings.HasSuffix(got, why) {
		t.Errorf("in the back-off: error %q, want text beginning with %q and ending with %q",
			got, "ImagePullBackOff: ", why)
	}
}

// TestAProviderThatHangsDelaysNoOtherPull also covers serial pulls. A request whose context ends does not wait for the
// provider.
func TestAProviderThatHangsDelaysNoOtherPull(t *testing.T) {
	called := make(chan struct{})
	r := newRig(t, serial, func(cfg *images.Config) {
		cfg.Providers = func(ctx context.Context, _ *v1.Pod, repository string) ([]imagecredentials.Given, []error) {
			if repository != "slow.test/web" {
				return nil, nil
			}
			close(called)
			<-ctx.Done()
			return nil, []error{ctx.Err()}
		}
	})
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error)
	go func() {
		_, err := r.Ensure(ctx, images.Request{Pod: pod("slow"), Container: "main", Image: "slow.test/web:1", Policy: v1.PullAlways})
		ended <- err
	}()
	<-called
	r.want("web", "quick.test/web:1", v1.PullAlways, "", "")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the interrupted caller ended with %v, want %v", err, context.Canceled)
	}
	if output := r.allOutput(); strings.Contains(output, "FailedToRetrieveImageCredentials") {
		t.Errorf("told:\n%s\nwant text without %q", output, "FailedToRetrieveImageCredentials")
	}
}
