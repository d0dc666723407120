package nodeconfig_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// plugins creates a directory with executable plugins of these names.
func plugins(t testing.TB, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func writeCredentials(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const wholeCredentials = `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ecr
  matchImages: ["*.dkr.ecr.*.amazonaws.com", "registry.example.com:5000/shop"]
  defaultCacheDuration: 12h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  args: [get-credentials]
  env: [{name: AWS_PROFILE, value: node}]
  tokenAttributes:
    serviceAccountTokenAudience: registry
    cacheType: ServiceAccount
    requireServiceAccount: true
    requiredServiceAccountAnnotationKeys: [example.com/role]
    optionalServiceAccountAnnotationKeys: [Example.com/Region]
`

func oneCredentialProvider(version, name string) string {
	return fmt.Sprintf(
		`{"apiVersion": %q, "kind": "CredentialProviderConfig", "providers": [{"name": %q, "matchImages": ["a.test"],
"defaultCacheDuration": "0s", "apiVersion": "credentialprovider.kubelet.k8s.io/v1alpha1"}]}`,
		version,
		name,
	)
}

func TestCredentialProvidersAreRead(t *testing.T) {
	bin := plugins(t, "ecr", "old", "older")
	file := writeCredentials(t, filepath.Join(t.TempDir(), "any-name"), wholeCredentials)
	got, err := nodeconfig.ReadCredentialProviders(file, bin)
	if err != nil {
		t.Fatal(err)
	}
	p := got.Providers[0]
	if len(got.Providers) != 1 || got.BinDir != bin || p.Name != "ecr" || len(p.MatchImages) != 2 ||
		p.DefaultCacheDuration.Duration != 12*time.Hour ||
		p.Args[0] != "get-credentials" ||
		p.Env[0].Value != "node" ||
		p.TokenAttributes.CacheType != "ServiceAccount" ||
		!*p.TokenAttributes.RequireServiceAccount {
		t.Errorf("got %+v", got)
	}

	dir := t.TempDir()
	writeCredentials(t, filepath.Join(dir, "20.json"), oneCredentialProvider("kubelet.config.k8s.io/v1alpha1", "older"))
	writeCredentials(t, filepath.Join(dir, "10.yml"), oneCredentialProvider("kubelet.config.k8s.io/v1beta1", "old"))
	writeCredentials(t, filepath.Join(dir, "30.yaml"), wholeCredentials)
	writeCredentials(t, filepath.Join(dir, "README.md"), "no configuration")
	if err := os.Mkdir(filepath.Join(dir, "40.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	all, err := nodeconfig.ReadCredentialProviders(dir, bin)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range all.Providers {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"old", "older", "ecr"}) {
		t.Errorf("the order is %v, want %v", names, []string{"old", "older", "ecr"})
	}
	if !strings.HasPrefix(got.Hash, "sha256:") || len(got.Hash) != 71 || all.Hash == got.Hash {
		t.Errorf("the digests are %s and %s", got.Hash, all.Hash)
	}
}

// TestWrongCredentialProvidersAreRefused: each error has its place and a fix.
func TestWrongCredentialProvidersAreRefused(t *testing.T) {
	change := func(old, with string) string { return strings.Replace(wholeCredentials, old, with, 1) }
	for text, want := range map[string]string{
		"":                                       "FILE: there is nothing in the file: write a CredentialProviderConfig",
		"- a\n":                                  "FILE: the file must be a mapping of fields to values",
		"a: *hunter2\n":                          "unknown anchor",
		"{}\n---\n{}\n":                          "there is more than one document in the file: leave one CredentialProviderConfig in it",
		"providers: [1]\n":                       "FILE:1: providers: must be a list of mappings",
		change("kubelet.config.k8s.io/v1", "v1"): `FILE:1: apiVersion: is "v1", must be one of kubelet.config.k8s.io/v1, kubelet.config.k8s.io/v1beta1, kubelet.config.k8s.io/v1alpha1`,
		change("k8s.io/v1", "k8s.io/v1beta1"):    "FILE:10: providers[0].tokenAttributes: there is no such field in kubelet.config.k8s.io/v1beta1: write apiVersion: kubelet.config.k8s.io/v1",
		change("CredentialProviderConfig", "KubeletConfiguration"): `FILE:2: kind: is "KubeletConfiguration", must be CredentialProviderConfig`,
		change("args", "arg"):                                                                     "FILE:8: providers[0].arg: there is no such field in a CredentialProviderConfig: remove it",
		change("cacheType: ", "cachetype: "):                                                      "providers[0].tokenAttributes.cachetype: there is no such field",
		change("[get-credentials]", "get-credentials"):                                            "FILE:8: providers[0].args: must be a list, not string",
		change("12h", "soon"):                                                                     "FILE:6: providers[0].defaultCacheDuration: must be a duration, for example 10m",
		change("12h", "-1s"):                                                                      "FILE:6: providers[0].defaultCacheDuration: is -1s, must be 0 or more",
		change("  defaultCacheDuration: 12h\n", ""):                                               "FILE:4: providers[0].defaultCacheDuration: is missing",
		change("name: ecr", "name: ecr\n  name: ecr"):                                             "FILE:5: providers[0].name: is given twice, first on line 4",
		change("name: ecr", "name: ../ecr"):                                                       `FILE:4: providers[0].name: is "../ecr", must be the name of a file, without a path`,
		change("name: ecr", "name: .."):                                                           `providers[0].name: is "..", must be`,
		change("name: ecr", "name: a b"):                                                          `providers[0].name: is "a b", must have no spaces`,
		change("name: ecr", "name: ''"):                                                           "providers[0].name: is missing",
		change("name: ecr", "name: gone"):                                                         "FILE:4: providers[0].name: there is no plugin BIN/gone: install it there, or see --image-credential-provider-bin-dir",
		change("name: ecr", "name: closed"):                                                       "FILE:4: providers[0].name: BIN/closed is no program that can be run: make it executable",
		change("name: ecr", "name: folder"):                                                       "FILE:4: providers[0].name: BIN/folder is no program",
		change("credentialprovider.kubelet.k8s.io/v1", "v1"):                                      `FILE:7: providers[0].apiVersion: is "v1", must be one of credentialprovider.kubelet.k8s.io/v1, `,
		change("  apiVersion: credentialprovider.kubelet.k8s.io/v1", ""):                          "providers[0].apiVersion: is missing: must be credentialprovider.kubelet.k8s.io/v1",
		change("k8s.io/v1\n  args", "k8s.io/v1beta1\n  args"):                                     "FILE:10: providers[0].tokenAttributes: needs apiVersion credentialprovider.kubelet.k8s.io/v1",
		change("*.dkr.ecr.*.amazonaws.com", "a b"):                                                `FILE:5: providers[0].matchImages[0]: "a b" is no registry`,
		change("Audience: registry", "Audience: ''"):                                              "FILE:11: providers[0].tokenAttributes.serviceAccountTokenAudience: is missing",
		change("cacheType: ServiceAccount", "cacheType: Pod"):                                     `FILE:12: providers[0].tokenAttributes.cacheType: is "Pod", must be Token or ServiceAccount`,
		change("    cacheType: ServiceAccount\n", ""):                                             "FILE:10: providers[0].tokenAttributes.cacheType: is missing",
		change("    requireServiceAccount: true\n", ""):                                           "FILE:10: providers[0].tokenAttributes.requireServiceAccount: is missing",
		change("requireServiceAccount: true", "requireServiceAccount: false"):                     "FILE:14: providers[0].tokenAttributes.requiredServiceAccountAnnotationKeys: needs requireServiceAccount: true",
		change("[example.com/role]", "['a b']"):                                                   `requiredServiceAccountAnnotationKeys[0]: is "a b": `,
		change("[example.com/role]", "[a, a]"):                                                    `FILE:14: providers[0].tokenAttributes.requiredServiceAccountAnnotationKeys[1]: "a" is given twice: remove one`,
		change("[Example.com/Region]", "[example.com/role]"):                                      `FILE:15: providers[0].tokenAttributes.optionalServiceAccountAnnotationKeys[0]: "example.com/role" is required too: remove one`,
		"apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: []\n":   "FILE:3: providers: is empty",
		"apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [{}]\n": "FILE:3: providers[0].matchImages: is empty",
		change("value: node", "value: [hunter2]"):                                                 "FILE:9: providers[0].env.value: must be a string, not array",
		change("value: node", "value: 424242"):                                                    "FILE:9: providers[0].env.value: must be a string, not number",
		change("value: node", "value: *hunter2"):                                                  "unknown anchor: ",
	} {
		bin := plugins(t, "ecr")
		writeCredentials(t, filepath.Join(bin, "closed"), "#!/bin/sh\n")
		if err := os.Mkdir(filepath.Join(bin, "folder"), 0o700); err != nil {
			t.Fatal(err)
		}
		file := writeCredentials(t, filepath.Join(t.TempDir(), "c.yaml"), text)
		_, err := nodeconfig.ReadCredentialProviders(file, bin)
		got := strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(err), file, "FILE"), bin, "BIN")
		if err == nil || !strings.Contains(got, want) || strings.Contains(got, "hunter2") || strings.Contains(got, "424242") {
			t.Errorf("of\n%s\ngot %s\nwant %s", text, got, want)
		}
	}
}

func TestAllProblemsOfCredentialProvidersAreReportedAtOnce(t *testing.T) {
	dir, bin := t.TempDir(), plugins(t, "one")
	writeCredentials(t, filepath.Join(dir, "a.yaml"), oneCredentialProvider("kubelet.config.k8s.io/v1", "one"))
	writeCredentials(t, filepath.Join(dir, "b.yaml"), oneCredentialProvider("kubelet.config.k8s.io/v1", "one"))
	writeCredentials(t, filepath.Join(dir, "c.yaml"), "kind: Pod\n")
	writeCredentials(t, filepath.Join(dir, "d.yaml"), oneCredentialProvider("kubelet.config.k8s.io/v1", "two"))
	_, err := nodeconfig.ReadCredentialProviders(dir, bin)
	got := strings.ReplaceAll(strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"), bin, "BIN")
	want := `the configuration is wrong in 4 places:
  DIR/c.yaml: apiVersion: is "", must be one of kubelet.config.k8s.io/v1, kubelet.config.k8s.io/v1beta1, kubelet.config.k8s.io/v1alpha1
  DIR/c.yaml:1: kind: is "Pod", must be CredentialProviderConfig
  DIR/b.yaml:1: providers[0].name: "one" is given twice, first in DIR/a.yaml:1: remove one
  DIR/d.yaml:1: providers[0].name: there is no plugin BIN/two: install it there, or see --image-credential-provider-bin-dir`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for path, want := range map[string]string{t.TempDir(): "has no file whose name ends in .json, .yaml or .yml", "/nowhere/c.yaml": "name a file or a directory that exists"} {
		if _, err := nodeconfig.ReadCredentialProviders(path, bin); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: ReadCredentialProviders() error = %v, want an error with %q", path, err, want)
		}
	}
	file := filepath.Join(dir, "a.yaml")
	for path, want := range map[string]string{file: "is no directory", "/nowhere": "name the directory that the plugins are in"} {
		if _, err := nodeconfig.ReadCredentialProviders(
			file,
			path,
		); err == nil || !strings.Contains(err.Error(), "--image-credential-provider-bin-dir: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: ReadCredentialProviders() error = %v, want an error with %q and with %q",
				path, err, "--image-credential-provider-bin-dir: ", want)
		}
	}
}

func TestFlagsOfCredentialProviders(t *testing.T) {
	const file, bin = "--image-credential-provider-config=", "--image-credential-provider-bin-dir="
	for args, want := range map[string]string{
		file + "c.yaml": "--image-credential-provider-config: needs --image-credential-provider-bin-dir with the directory of the plugins",
		bin + "bin":     "--image-credential-provider-bin-dir: needs --image-credential-provider-config with the file that assigns the plugins to registries",
		"--host-root=/host " + file + "c.yaml " + bin + "/bin": `--image-credential-provider-config: "c.yaml" must be an absolute path of the machine, as --host-root is given`,
		file + "c.yaml " + bin + "/bin":                        "",
		"--host-root=/host " + file + "/c.yaml " + bin + "/b":  "",
	} {
		cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, strings.Fields("--hostname-override=node "+args), nil)
		if want == "" &&
			(err != nil || !filepath.IsAbs(cfg.CredentialProviders.Config) || !filepath.IsAbs(cfg.CredentialProviders.BinDir)) {
			t.Errorf("%s: %+v, error %v", args, cfg.CredentialProviders, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	if _, err := nodeconfig.Parse(
		nodeconfig.PLEG,
		[]string{"--hostname-override=node", file + "/c.yaml"},
		nil,
	); err == nil {
		t.Error("pleg takes a flag that has no effect on it")
	}
	given := nodeconfig.CredentialProviderFlags{BinDir: "/bin"}
	if _, err := given.Read(); err == nil || !strings.Contains(err.Error(), "needs --image-credential-provider-config") {
		t.Errorf("one flag without the other: %v", err)
	}
	if none, err := (&nodeconfig.CredentialProviderFlags{}).Read(); err != nil || len(none.Providers) != 0 ||
		none.Hash != "" {
		t.Errorf("without flags there is %+v, error %v", none, err)
	}
}

// FuzzCredentialProviders: any content of the file is accepted, or each error names the file.
func FuzzCredentialProviders(f *testing.F) {
	f.Add(wholeCredentials)
	f.Add(oneCredentialProvider("kubelet.config.k8s.io/v1beta1", "ecr"))
	f.Add("providers: [{name: ecr, env: [{value: {}}]}, null, 3]\nkind: [x]\n")
	f.Add("a: &a [*a]\n? [x]\n: y\n<<: 3\n")
	bin := plugins(f, "ecr")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		file := writeCredentials(t, filepath.Join(dir, "c.yaml"), text)
		got, err := nodeconfig.ReadCredentialProviders(file, bin)
		if err == nil && (len(got.Providers) == 0 || got.Providers[0].DefaultCacheDuration == nil) {
			t.Errorf("%q is taken as %+v", text, got)
		}
		wrong, _ := err.(nodeconfig.Errors) //nolint:errorlint // it is what is returned
		for _, one := range wrong {
			if !strings.HasPrefix(one.Error(), file) {
				t.Errorf("%q: one = %v, want Error beginning with %q", text, one, file)
			}
		}
	})
}
