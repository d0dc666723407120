package images_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/registry"
)

// TestPullsOnContainerd pulls from a real registry with a real runtime, including failures.
func TestPullsOnContainerd(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	containerd := harness.StartContainerd(t)
	reg := registry.Start(t, filepath.Join(harness.BinDir(t), "images", "hello.tar"))
	m := newMachine(t)
	node := func(t *testing.T) *rig {
		return onRuntime(t, containerd.Endpoint, func(cfg *images.Config) { cfg.Credentials = m.configs().For })
	}
	reason := func(r *rig, repository string, policy v1.PullPolicy) (string, string) {
		_, err := r.ensure("web", reg.Image(repository), policy)
		if failure := (*images.Error)(nil); errors.As(err, &failure) {
			return failure.Reason, failure.Message
		}
		if err != nil {
			t.Fatal(err)
		}
		return "", ""
	}
	// No part of the test may reveal it.
	const password = "pass-w0rd"
	m.write(filepath.Join(m.root, "config.json"), `{"auths":{"`+reg.Host()+`/shop":{"username":"puller","password":"`+password+`"}}}`)

	t.Run("by policy", func(t *testing.T) {
		r := node(t)
		if why, _ := reason(r, "plain", v1.PullNever); why != images.ReasonNeverPull {
			t.Errorf("Never: %q, want %q", why, images.ReasonNeverPull)
		}
		if requests := reg.Asked("plain"); len(requests) != 0 {
			t.Errorf("Never asked the registry %d times", len(requests))
		}
		for _, policy := range []v1.PullPolicy{v1.PullIfNotPresent, v1.PullNever} {
			if why, message := reason(r, "plain", policy); why != "" {
				t.Errorf("%s: reason(plain) = %s: %s, want an empty text", policy, why, message)
			}
		}
		requests := len(reg.Asked("plain"))
		if why, _ := reason(r, "plain", v1.PullIfNotPresent); why != "" || len(reg.Asked("plain")) != requests {
			t.Errorf("IfNotPresent of what is there: %q, %d questions more", why, len(reg.Asked("plain"))-requests)
		}
		if why, _ := reason(r, "plain", v1.PullAlways); why != "" || len(reg.Asked("plain")) == requests {
			t.Errorf("Always of what is there: %q, and the registry was not asked", why)
		}
		if slices.ContainsFunc(reg.Asked("plain"), func(user string) bool { return user != "" }) {
			t.Error("credentials for one path were sent for another")
		}
	})
	t.Run("an image that is not there", func(t *testing.T) {
		reg.Break("missing", registry.Missing)
		r := node(t)
		if why, message := reason(r, "missing", v1.PullIfNotPresent); why != images.ReasonPull || !strings.Contains(message, "not found") {
			t.Errorf("reason(missing) = %s: %s, want %s and with %q", why, message, images.ReasonPull, "not found")
		}
		if why, _ := reason(r, "missing", v1.PullIfNotPresent); why != images.ReasonPullBackOff {
			t.Errorf("then %s, want %s", why, images.ReasonPullBackOff)
		}
	})
	t.Run("with a password", func(t *testing.T) {
		reg.Protect("shop/web", "puller", password)
		reg.Protect("other/web", "puller", password)
		r := node(t)
		if why, message := reason(r, "shop/web", v1.PullIfNotPresent); why != "" {
			t.Errorf("with credentials: %s: %s, want an empty text", why, message)
		}
		if !slices.Contains(reg.Asked("shop/web"), "puller") {
			t.Errorf("the users were %q, want %q among them", reg.Asked("shop/web"), "puller")
		}
		if why, message := reason(r, "other/web", v1.PullIfNotPresent); why != images.ReasonPull || !strings.Contains(message, "authorization failed") {
			t.Errorf("without credentials: %s: %s", why, message)
		}
		checkNotLeaked(t, r, password)
	})
	t.Run("with what a plugin has", func(t *testing.T) {
		const secret = "plugin-pass"
		reg.Protect("plugin/web", "robot", secret)
		reg.Protect("plugin/files", "robot", secret)
		if why, message := reason(node(t), "plugin/web", v1.PullIfNotPresent); why != images.ReasonPull || !strings.Contains(message, "authorization failed") {
			t.Errorf("without the plugin: %s: %s", why, message)
		}
		dir := t.TempDir()
		script := "#!/bin/sh\ncat >/dev/null\necho run >>" + filepath.Join(dir, "runs") + "\ncat <<.\n" +
			`{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
"auth": {"` + reg.Host() + `/plugin": {"username": "robot", "password": "` + secret + `"}}}` + "\n.\n"
		if err := os.WriteFile(filepath.Join(dir, "robot"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		provider := kubeletconfigv1.CredentialProvider{
			Name: "robot", MatchImages: []string{reg.Host()}, APIVersion: "credentialprovider.kubelet.k8s.io/v1", DefaultCacheDuration: &metav1.Duration{Duration: time.Hour},
		}
		r := onRuntime(t, containerd.Endpoint, func(cfg *images.Config) {
			cfg.Credentials = m.configs().For
			cfg.Providers = imagecredentials.New(t.Context(), imagecredentials.Config{
				Providers: nodeconfig.CredentialProviders{Providers: []kubeletconfigv1.CredentialProvider{provider}, BinDir: dir},
				Run:       imagecredentials.Exec, Clock: cfg.Clock, Logger: cfg.Logger,
			}).For
		})
		for _, repository := range []string{"plugin/web", "plugin/files"} {
			if why, message := reason(r, repository, v1.PullIfNotPresent); why != "" {
				t.Errorf("with the plugin: %s: %s, want an empty text", why, message)
			}
		}
		if runs, err := os.ReadFile(filepath.Join(dir, "runs")); err != nil || string(runs) != "run\n" {
			t.Errorf("the plugin has run %q, error %v; its answer is for the registry", runs, err)
		}
		checkNotLeaked(t, r, secret)
	})
	t.Run("with a wrong password", func(t *testing.T) {
		reg.Protect("shop/changed", "puller", "another-one")
		r := node(t)
		if why, message := reason(r, "shop/changed", v1.PullIfNotPresent); why != images.ReasonPull || !strings.Contains(message, "401") && !strings.Contains(message, "authorization failed") {
			t.Errorf("reason = %s: %s, want %s and a refused authorization", why, message, images.ReasonPull)
		}
		checkNotLeaked(t, r, password)
	})
	t.Run("a registry that repeats the password", func(t *testing.T) {
		reg.Protect("shop/talks", "puller", password)
		reg.Break("shop/talks", registry.Talkative)
		r := node(t)
		why, message := reason(r, "shop/talks", v1.PullIfNotPresent)
		if why != images.ReasonPull || !strings.Contains(message, "user puller with password [credential]") {
			t.Errorf("reason(shop/talks) = %s: %s, want %s and with %q",
				why, message, images.ReasonPull, "user puller with password [credential]")
		}
		checkNotLeaked(t, r, password)
	})
	t.Run("one that breaks off in the middle", func(t *testing.T) {
		reg.Break("broken", registry.Broken)
		r := node(t)
		if why, message := reason(r, "broken", v1.PullIfNotPresent); why != images.ReasonPull {
			t.Errorf("reason(broken) = %s: %s, want %s", why, message, images.ReasonPull)
		}
		if why, _ := reason(r, "broken", v1.PullNever); why != images.ReasonNeverPull {
			t.Errorf("a part of an image is present: %q, want %q", why, images.ReasonNeverPull)
		}
		reg.Break("broken", registry.None)
		r.clock.Step(backoffOver)
		if why, message := reason(r, "broken", v1.PullIfNotPresent); why != "" {
			t.Errorf("mended: %s: %s, want an empty text", why, message)
		}
	})
}

// backoffOver is longer than any back-off.
const backoffOver = 6 * time.Minute

// checkNotLeaked checks that a password appears nowhere.
func checkNotLeaked(t *testing.T, r *rig, password string) {
	t.Helper()
	if output := r.allOutput(); strings.Contains(output, password) {
		t.Errorf("the password is in the output:\n%s\nwant text without %q", output, password)
	}
}
