package pullrecords_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/pullrecords"
)

const (
	image = "registry.test/shop/web:1"
	id    = "sha256:abc"
)

// rig is a Book in a directory.
type rig struct {
	*pullrecords.Book
	t     *testing.T
	root  string
	clock *testclock.FakePassiveClock
	log   bytes.Buffer
}

func newRig(t *testing.T, policy kubeletconfigv1beta1.ImagePullCredentialsVerificationPolicy, allow ...string) *rig {
	t.Helper()
	r := &rig{t: t, root: t.TempDir(), clock: testclock.NewFakePassiveClock(time.Unix(1000, 0))}
	r.start(policy, allow...)
	return r
}

// start starts a new process.
func (r *rig) start(policy kubeletconfigv1beta1.ImagePullCredentialsVerificationPolicy, allow ...string) {
	r.Book = pullrecords.New(pullrecords.Config{
		RootDir: r.root, Policy: pullrecords.Policy{Verification: policy, Allowlist: allow}, Clock: r.clock,
		Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
	})
}

func secret(uid, hash string) kubeletconfigv1beta1.ImagePullSecret {
	return kubeletconfigv1beta1.ImagePullSecret{UID: uid, Namespace: "shop", Name: "pull-" + uid, CredentialHash: hash}
}

func (r *rig) pulled(name string, with *kubeletconfigv1beta1.ImagePullCredentials) {
	r.t.Helper()
	if err := r.Begin(name); err != nil {
		r.t.Fatal(err)
	}
	r.Pulled(r.t.Context(), name, id, with)
}

func (r *rig) withSecrets(secrets ...kubeletconfigv1beta1.ImagePullSecret) {
	r.t.Helper()
	r.pulled(image, &kubeletconfigv1beta1.ImagePullCredentials{KubernetesSecrets: secrets})
}

func (r *rig) mustPull(name string, secrets ...kubeletconfigv1beta1.ImagePullSecret) bool {
	r.t.Helper()
	must, err := r.MustPull(r.t.Context(), name, id, func() (pullrecords.Credentials, error) {
		return pullrecords.Credentials{Secrets: secrets}, nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return must
}

func (r *rig) file(dir, name string) string {
	return filepath.Join(r.root, "image_manager", dir, fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name))))
}

func (r *rig) files(dir string) int {
	entries, err := os.ReadDir(filepath.Join(r.root, "image_manager", dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	return len(entries)
}

func TestWhichImagesAreVerified(t *testing.T) {
	for _, test := range []struct {
		policy             kubeletconfigv1beta1.ImagePullCredentialsVerificationPolicy
		allow              []string
		preloaded, secrets bool // whether a pod without credentials must pull
	}{
		{policy: kubeletconfigv1beta1.NeverVerify},
		{policy: kubeletconfigv1beta1.NeverVerifyPreloadedImages, secrets: true},
		{policy: kubeletconfigv1beta1.AlwaysVerify, preloaded: true, secrets: true},
		{policy: kubeletconfigv1beta1.NeverVerifyAllowlistedImages, preloaded: true, secrets: true},
		{policy: kubeletconfigv1beta1.NeverVerifyAllowlistedImages, allow: []string{"registry.test/shop/web"}},
		{policy: kubeletconfigv1beta1.NeverVerifyAllowlistedImages, allow: []string{"registry.test/shop/*"}},
		{policy: kubeletconfigv1beta1.NeverVerifyAllowlistedImages, allow: []string{"registry.test/sh", "registry.test/shop/web/*"}, preloaded: true, secrets: true},
	} {
		t.Run(fmt.Sprint(test.policy, test.allow), func(t *testing.T) {
			r := newRig(t, test.policy, test.allow...)
			if got := r.mustPull(image); got != test.preloaded {
				t.Errorf("preloaded: must be pulled: %t", got)
			}
			r.withSecrets(secret("1", "h1"))
			if got := r.mustPull(image); got != test.secrets {
				t.Errorf("pulled with a secret: must be pulled: %t", got)
			}
			r.pulled(image, nil)
			if r.mustPull(image) {
				t.Error("pulled without credentials: must be pulled")
			}
		})
	}
}

func TestCredentialsThatGiveAccessToAnImage(t *testing.T) {
	for _, test := range []struct {
		name string
		own  []kubeletconfigv1beta1.ImagePullSecret
		want bool
	}{
		{"none", nil, true},
		{"the same", []kubeletconfigv1beta1.ImagePullSecret{secret("1", "h1")}, false},
		{"the same content in another secret", []kubeletconfigv1beta1.ImagePullSecret{secret("2", "h1")}, false},
		{"the same secret with another content", []kubeletconfigv1beta1.ImagePullSecret{secret("1", "h2")}, false},
		{"another", []kubeletconfigv1beta1.ImagePullSecret{secret("2", "h2")}, true},
		{"no hash", []kubeletconfigv1beta1.ImagePullSecret{secret("2", "")}, true},
		{"one of several", []kubeletconfigv1beta1.ImagePullSecret{secret("2", "h2"), secret("3", "h1")}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
			r.withSecrets(secret("1", "h1"))
			if got := r.mustPull(image, test.own...); got != test.want {
				t.Errorf("must be pulled: %t, want %t", got, test.want)
			}
			if got := r.mustPull("registry.test/shop/other:1", secret("1", "h1")); !got {
				t.Error("under another name the image needs no pull")
			}
			if got := r.mustPull("registry.test/shop/web:2", secret("1", "h1")); got {
				t.Error("under another tag the image needs a pull")
			}
		})
	}
}

// TestASecretThatMatchesCountsFromThenOn uses a secret with the same content after the secret of the pull was removed.
func TestASecretThatMatchesCountsFromThenOn(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.AlwaysVerify)
	r.withSecrets(secret("1", "h1"))
	if r.mustPull(image, secret("1", "h2")) || r.mustPull(image, secret("9", "h2")) {
		t.Error("the new content of the secret does not count")
	}
	if !r.mustPull(image, secret("8", "h1")) {
		t.Error("the old content counts")
	}
}

func TestServiceAccountsCount(t *testing.T) {
	account := func(uid string) kubeletconfigv1beta1.ImagePullServiceAccount {
		return kubeletconfigv1beta1.ImagePullServiceAccount{UID: uid, Namespace: "shop", Name: "robot"}
	}
	r := newRig(t, kubeletconfigv1beta1.AlwaysVerify)
	r.pulled(image, &kubeletconfigv1beta1.ImagePullCredentials{
		KubernetesServiceAccounts: []kubeletconfigv1beta1.ImagePullServiceAccount{account("1")},
	})
	for uid, want := range map[string]bool{"1": false, "2": true} {
		own := account(uid)
		must, err := r.MustPull(t.Context(), image, id, func() (pullrecords.Credentials, error) {
			return pullrecords.Credentials{Account: &own}, nil
		})
		if err != nil || must != want {
			t.Errorf("of account %s: must be pulled: %t, %v", uid, must, err)
		}
	}
	failed := errors.New("the secret cannot be read")
	if must, err := r.MustPull(t.Context(), image, id, func() (pullrecords.Credentials, error) {
		return pullrecords.Credentials{}, failed
	}); !must || !errors.Is(err, failed) {
		t.Errorf("MustPull() = %t, %v, want true and %v", must, err, failed)
	}
}

// TestAPullThatAKillInterruptedCounts checks that the image does not count as preloaded.
func TestAPullThatAKillInterruptedCounts(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	if err := r.Begin(image); err != nil {
		t.Fatal(err)
	}
	if !r.mustPull(image) {
		t.Error("during a pull another pod can use the image without a pull")
	}
	r.start(kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	if !r.mustPull(image) {
		t.Error("after a kill a pod can use the image without a pull")
	}
	r.Recover(t.Context(), []*runtimeapi.Image{{Id: "sha256:other", RepoTags: []string{"registry.test/shop/other:1"}}, {Id: id, RepoTags: []string{image}}})
	if r.files("pulling") != 0 || r.files("pulled") != 1 || !r.mustPull(image) || !r.mustPull(image, secret("1", "h1")) {
		t.Errorf("it is not pulled with unknown credentials: %d, %d", r.files("pulling"), r.files("pulled"))
	}
	r.withSecrets(secret("1", "h1"))
	if r.mustPull(image, secret("1", "h1")) {
		t.Error("an image that was pulled again still needs a pull")
	}
}

func TestAPullThatFailsLeavesNothing(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	for range 2 {
		if err := r.Begin(image); err != nil {
			t.Fatal(err)
		}
	}
	r.Failed(t.Context(), image)
	if r.files("pulling") != 1 {
		t.Error("the intent of the other pull was removed")
	}
	r.Failed(t.Context(), image)
	if r.files("pulling") != 0 || r.mustPull(image) {
		t.Error("something is left")
	}
}

func TestAnImageIsNotPulledWithoutARecord(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	if err := os.WriteFile(filepath.Join(r.root, "image_manager"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.Begin(image); err == nil || !strings.Contains(err.Error(), "failed to record image pull intent") {
		t.Errorf("Begin() error = %v, want an error with %q", err, "failed to record image pull intent")
	}
}

// TestADamagedRecordIsRewritten checks that until then every pod has to pull the image.
func TestADamagedRecordIsRewritten(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	r.withSecrets(secret("1", "h1"))
	if err := os.WriteFile(r.file("pulled", id), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !r.mustPull(image, secret("1", "h1")) || !strings.Contains(r.log.String(), "cannot read the credentials") {
		t.Errorf("a damaged record lets a pod have the image: %s", r.log.String())
	}
	r.withSecrets(secret("1", "h1"))
	if r.mustPull(image, secret("1", "h1")) {
		t.Error("the record was not replaced")
	}
}

// TestARecordThatCannotBeReadIsNotReplaced has each read of a record fail with an I/O error until the disk is well.
func TestARecordThatCannotBeReadIsNotReplaced(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	r.withSecrets(secret("1", "h1"))
	file := r.file("pulled", id)
	if err := errors.Join(os.Rename(file, file+".good"), os.Symlink("/proc/self/mem", file)); err != nil {
		t.Fatal(err)
	}
	if !r.mustPull(image, secret("1", "h1")) {
		t.Error("without the record the pod has the image without a pull")
	}
	r.withSecrets(secret("2", "h2"))
	if err := os.Rename(file+".good", file); err != nil {
		t.Fatal(err)
	}
	if r.mustPull(image, secret("1", "h1")) {
		t.Error("the first secret is forgotten")
	}
}

func TestRecordsOfImagesThatAreGoneAreRemoved(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	r.withSecrets(secret("1", "h1"))
	written := r.clock.Now()
	r.Prune(t.Context(), nil, written) // written after the runtime's images were listed
	r.Prune(t.Context(), []string{id}, written.Add(time.Minute))
	if r.files("pulled") != 1 {
		t.Fatal("a record that is needed is gone")
	}
	r.Prune(t.Context(), []string{"sha256:other"}, written.Add(time.Minute))
	if r.files("pulled") != 0 {
		t.Error("the record of a removed image exists")
	}
}

// TestTheFormIsTheKubelets checks the names of files and the fields of both kinds, as a kubelet of this version writes
// and reads them.
func TestTheFormIsTheKubelets(t *testing.T) {
	r := newRig(t, kubeletconfigv1beta1.NeverVerifyPreloadedImages)
	if err := r.Begin(image); err != nil {
		t.Fatal(err)
	}
	check := func(dir, name string, want map[string]any) {
		t.Helper()
		data, err := os.ReadFile(r.file(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check("pulling", image, map[string]any{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "ImagePullIntent", "image": image})
	r.Pulled(t.Context(), image, id, &kubeletconfigv1beta1.ImagePullCredentials{
		KubernetesSecrets: []kubeletconfigv1beta1.ImagePullSecret{secret("1", "h1")},
	})
	check("pulled", id, map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "ImagePulledRecord", "imageRef": id, "lastUpdatedTime": "1970-01-01T00:16:40Z",
		"credentialMapping": map[string]any{"registry.test/shop/web": map[string]any{
			"kubernetesSecrets": []any{map[string]any{"uid": "1", "namespace": "shop", "name": "pull-1", "credentialHash": "h1"}},
		}},
	})
	info, err := os.Stat(r.file("pulled", id))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, %v, want Perm 0o600", info.Mode(), err)
	}
	if names := strings.Split(r.log.String(), "\n"); slices.ContainsFunc(names, func(line string) bool { return line != "" }) {
		t.Errorf("the log says %s", r.log.String())
	}
}
