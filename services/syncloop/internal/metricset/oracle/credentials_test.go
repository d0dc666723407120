package oracle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/plugin"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
)

// provider is a credential provider, and what its plugin answers: the auths, and how they are kept.
type provider struct {
	name, matches, settings, kind, duration, auth string
}

// providers of all kinds. The names are their own: a kubelet takes each once in the life of its process.
var providers = []provider{
	{"image", `["*.test"]`, `defaultCacheDuration: 1h`, "Image", `"cacheDuration": "2h",`, `"*.test": {"username": "image", "password": "p"}, "b.test/shop": {"username": "shop", "password": "p"}`},
	{"registry", `["a.test", "a.test:5000/shop"]`, `defaultCacheDuration: 1h`, "Registry", "", `"a.test": {"username": "registry", "password": "p"}, "a.test:5000": {"username": "port", "password": "p"}`},
	{"global", `["*.test:5000", "docker.io"]`, `defaultCacheDuration: 1h`, "Global", "", `"a.*:5000": {"username": "global", "password": "p"}, "index.docker.io": {"username": "hub", "password": "p"}`},
	{"uncached", `["b.test"]`, `defaultCacheDuration: 1h`, "Image", `"cacheDuration": "0s",`, `"b.test": {"username": "uncached", "password": "p"}, "https://b.test/v1/shop": {"username": "old", "password": "p"}`},
	{"undecided", `["b.test"]`, `defaultCacheDuration: 0s`, "Image", "", `"b.test": {"username": "undecided", "password": "p"}`},
	{"nothing", `["*.test"]`, `defaultCacheDuration: 1h`, "Global", "", ""},
	{"broken", `["*.test"]`, `defaultCacheDuration: 1h`, "Other", "", `"*.test": {"username": "broken", "password": "p"}`},
	{"failing", `["f.test"]`, `defaultCacheDuration: 1h`, "", "", ""},
	{"token", `["t.test"]`, "defaultCacheDuration: 1h\n  tokenAttributes: {serviceAccountTokenAudience: registry, cacheType: Token, requireServiceAccount: true, " +
		"requiredServiceAccountAnnotationKeys: [role], optionalServiceAccountAnnotationKeys: [region]}", "Registry", "", `"t.test": {"username": "token", "password": "p"}`},
	{"account", `["t.test"]`, "defaultCacheDuration: 1h\n  tokenAttributes: {serviceAccountTokenAudience: registry, cacheType: ServiceAccount, requireServiceAccount: false}",
		"Image", "", `"t.test": {"username": "account", "password": "p"}`},
}

// write writes the configuration, and plugins that keep what they are asked in the file asked.
func write(dir string) error {
	text := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"
	for _, p := range providers {
		text += fmt.Sprintf("- name: %s\n  matchImages: %s\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [%s]\n  %s\n", p.name, p.matches, dir, p.settings)
		script := fmt.Sprintf("#!/bin/sh\n(printf '%s '; cat) >>$1/asked\ncat <<.\n"+
			`{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": %q, %s "auth": {%s}}`+"\n.\n", p.name, p.kind, p.duration, p.auth)
		if p.kind == "" {
			script = "#!/bin/sh\nexit 1\n"
		}
		if err := os.WriteFile(filepath.Join(dir, p.name), []byte(script), 0o700); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(text), 0o600)
}

// asked is what the plugins of a folder were asked since the last call.
func asked(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err == nil {
		if err := os.Remove(filepath.Join(dir, "asked")); err != nil {
			t.Fatal(err)
		}
	}
	return slices.Sorted(strings.Lines(string(text)))
}

// account is a service account by its name, of which "plain" takes no part.
func account(namespace, name string) (*v1.ServiceAccount, error) {
	switch name {
	case "gone":
		return nil, fmt.Errorf("there is no %s/%s", namespace, name)
	case "plain":
		return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "plain"}}, nil
	default:
		return &v1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{
				UID: types.UID(name), Annotations: map[string]string{"role": "puller", "region": "north", "more": "x"},
			},
		}, nil
	}
}

// ours are accounts as syncloop asks for them.
type ours struct{}

func (ours) Account(_ context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	return account(namespace, name)
}

func (ours) Token(_ context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	return fmt.Sprintf("%s %s %s %s %s", pod.Namespace, pod.Name, pod.UID, account.UID, audience), nil
}

// kubelets is the folder of the plugins that are registered with the kubelet's code.
var kubelets string

// TestMain registers them: that code takes each once in the life of a process.
func TestMain(m *testing.M) {
	code, err := withPlugins(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withPlugins(run func() int) (code int, err error) {
	if kubelets, err = os.MkdirTemp("", "credentials"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(kubelets)) }()
	if err := write(kubelets); err != nil {
		return 0, err
	}
	token := func(namespace, _ string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		r.Status.Token = fmt.Sprintf("%s %s %s %s %s", namespace, r.Spec.BoundObjectRef.Name, r.Spec.BoundObjectRef.UID, r.UID, r.Spec.Audiences[0])
		return r, nil
	}
	if err := plugin.RegisterCredentialProviderPlugins(filepath.Join(kubelets, "config.yaml"), kubelets, token,
		account); err != nil {
		return 0, err
	}
	return run(), nil
}

// TestPluginsAreAskedAndUsedAsByTheKubelet: for each image in turn they are asked for the same, or not at all since an
// answer still holds, and the same credentials are tried in the same order.
func TestPluginsAreAskedAndUsedAsByTheKubelet(t *testing.T) {
	own := t.TempDir()
	if err := write(own); err != nil {
		t.Fatal(err)
	}
	config, err := nodeconfig.ReadCredentialProviders(filepath.Join(own, "config.yaml"), own)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// One after the other, so that what they were asked has an order.
	one := make(chan struct{}, 1)
	run := func(ctx context.Context, c imagecredentials.Command) (imagecredentials.Output, error) {
		one <- struct{}{}
		defer func() { <-one }()
		return imagecredentials.Exec(ctx, c)
	}
	mine := imagecredentials.New(ctx, imagecredentials.Config{
		Providers: config, Run: run, Accounts: ours{}, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	for i, step := range []struct{ pod, account, image string }{
		{"p1", "", "a.test/web"},
		{"p1", "", "a.test/web"},
		{"p2", "", "a.test/shop/web"},
		{"p2", "", "a.test:5000/web"},
		{"p2", "", "a.test:5000/shop/web"},
		{"p2", "", "c.test:5000/web"},
		{"p3", "", "b.test/shop/web"},
		{"p3", "", "b.test/shop/web"},
		{"p3", "", "b.test/web"},
		{"p3", "", "x.b.test/web"},
		{"p3", "", "docker.io/library/web"},
		{"p3", "", "f.test/web"},
		{"p4", "", "t.test/web"},
		{"p4", "robot", "t.test/web"},
		{"p4", "robot", "t.test/web"},
		{"p5", "robot", "t.test/web"},
		{"p5", "robot", "t.test/files"},
		{"p5", "other", "t.test/web"},
		{"p5", "plain", "t.test/web"},
		{"p5", "gone", "t.test/web"},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: step.pod, UID: types.UID("uid-" + step.pod)}, Spec: v1.PodSpec{ServiceAccountName: step.account}}
		found, _ := mine.For(ctx, pod, step.image)
		keyring := &credentialprovider.BasicDockerKeyring{}
		for _, given := range found {
			keyring.Add(nil, given.Config)
		}
		want, _ := plugin.NewExternalCredentialProviderDockerKeyring("shop", step.pod, "uid-"+step.pod, step.account).Lookup(step.image)
		got, _ := keyring.Lookup(step.image)
		if diff := cmp.Diff(users(want), users(got)); diff != "" {
			t.Errorf("step %d, %+v: credentials (-kubelet +ours):\n%s", i, step, diff)
		}
		if diff := cmp.Diff(asked(t, kubelets), asked(t, own)); diff != "" {
			t.Errorf("step %d, %+v: asked (-kubelet +ours):\n%s", i, step, diff)
		}
	}
}

// users are those whose credentials are tried, in their order.
func users(auths []credentialprovider.TrackedAuthConfig) []string {
	names := []string{}
	for _, auth := range auths {
		names = append(names, auth.Username+" "+auth.Password)
	}
	return names
}

// TestConfigurationsThatTheKubeletRefusesAreRefused, of configurations of credential providers, and the other way
// round.
func TestConfigurationsThatTheKubeletRefusesAreRefused(t *testing.T) {
	dir := t.TempDir()
	names := 0
	for _, change := range []struct{ old, with string }{
		{"", ""},
		{"k8s.io/v1\n", "k8s.io/v2\n"},
		{"kind: Cred", "kind: cred"},
		{"providers:", "Providers:"},
		{"- name: NAME", "- name: a b"},
		{"- name: NAME", "- name: ''"},
		{"- name: NAME", "- name: ./NAME"},
		{"- name: NAME", "- name: .."},
		{"- name: NAME", "- name: gone"},
		{"- name: NAME", "- Name: NAME"},
		{"[a.test]", "[]"},
		{"[a.test]", "['a b']"},
		{"[a.test]", "['a.test:port']"},
		{"[a.test]", "['']"},
		{"[a.test]", "a.test"},
		{"1h", "-1h"},
		{"1h", "0"},
		{"1h", "soon"},
		{"  defaultCacheDuration: 1h\n", ""},
		{"provider.kubelet.k8s.io/v1", "provider.kubelet.k8s.io/v1beta1"},
		{"provider.kubelet.k8s.io/v1", "provider.kubelet.k8s.io/v1alpha1"},
		{"provider.kubelet.k8s.io/v1", "provider.kubelet.k8s.io/v2"},
		{"  env: []\n", "  env: [{name: A, value: b}, {}]\n"},
		{"  env: []\n", "  env: [{name: A, val: b}]\n"},
		{"  env: []\n", "  args: [1]\n"},
		{"  env: []\n", "  tokenAttributes: null\n"},
		{"  env: []\n", "  tokenAttributes: {}\n"},
		{"  env: []\n", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true}\n"},
		{"  env: []\n", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Pod, requireServiceAccount: true}\n"},
		{"  env: []\n", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token}\n"},
		{"  env: []\n", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false, requiredServiceAccountAnnotationKeys: [a]}\n"},
		{"  env: []\n", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false, optionalServiceAccountAnnotationKeys: [a, a]}\n"},
		{"  env: []\n", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false, optionalServiceAccountAnnotationKeys: [A/B, a/b, '']}\n"},
		{"  env: []\n", "  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true, requiredServiceAccountAnnotationKeys: [a], optionalServiceAccountAnnotationKeys: [a]}\n"},
		{"config.k8s.io/v1\n", "config.k8s.io/v1beta1\n"},
		{"config.k8s.io/v1\n", "config.k8s.io/v1alpha1\n"},
		{"  env: []\n", "  env: []\n- {name: NAME, matchImages: [b.test], defaultCacheDuration: 1h, apiVersion: credentialprovider.kubelet.k8s.io/v1}\n"},
	} {
		names++
		name := fmt.Sprintf("refused-%d", names)
		text := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: NAME\n  matchImages: [a.test]\n  defaultCacheDuration: 1h\n" +
			"  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  env: []\n"
		text = strings.ReplaceAll(strings.Replace(text, change.old, change.with, 1), "NAME", name)
		file := filepath.Join(dir, "config.yaml")
		for path, content := range map[string]string{file: text, filepath.Join(dir, name): "#!/bin/sh\n"} {
			if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		theirs := plugin.RegisterCredentialProviderPlugins(file, dir, nil, nil)
		_, ours := nodeconfig.ReadCredentialProviders(file, dir)
		if (theirs == nil) != (ours == nil) {
			t.Errorf("%q instead of %q: the kubelet says %v, and we %v", change.with, change.old, theirs, ours)
		}
	}
}
