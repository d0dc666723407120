package images_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
)

func removal(name string) *runtimeapi.RemoveImageRequest {
	return &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}}
}

// machine holds the directories of credential files.
type machine struct {
	t          *testing.T
	root, home string
	log        strings.Builder
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, root: t.TempDir(), home: t.TempDir()}
}

// write writes a file.
func (m *machine) write(path, content string) {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// configJSON returns a config.json with an entry for each registry, of the user NAME with the password NAME-secret.
func configJSON(entries ...string) string { return `{"auths":` + dockercfg(entries...) + `}` }

func dockercfg(entries ...string) string {
	var all []string
	for _, entry := range entries {
		registry, user, _ := strings.Cut(entry, "=")
		all = append(all, fmt.Sprintf("%q:{\"auth\":%q}", registry, base64.StdEncoding.EncodeToString([]byte(user+":"+user+"-secret"))))
	}
	return "{" + strings.Join(all, ",") + "}"
}

func (m *machine) configs() *images.DockerConfigs {
	return images.NewDockerConfigs(m.root, m.home, slog.New(slog.NewTextHandler(&m.log, nil)))
}

// users returns the users of the credentials for a repository.
func (m *machine) users(repository string) string {
	var users []string
	for _, auth := range m.configs().For(m.t.Context(), repository) {
		if auth.GetPassword() != auth.GetUsername()+"-secret" {
			m.t.Errorf("the password of %s is %q, want %q",
				auth.GetUsername(), auth.GetPassword(), auth.GetUsername()+"-secret")
		}
		users = append(users, auth.GetUsername())
	}
	return strings.Join(users, " ")
}

func TestCredentialsAreFoundWhereTheKubeletFindsThem(t *testing.T) {
	root := func(m *machine) string { return filepath.Join(m.root, "config.json") }
	rootOld := func(m *machine) string { return filepath.Join(m.root, ".dockercfg") }
	home := func(m *machine) string { return filepath.Join(m.home, ".docker", "config.json") }
	homeOld := func(m *machine) string { return filepath.Join(m.home, ".dockercfg") }
	for name, c := range map[string]struct {
		files map[string]func(*machine) string // user: where its file is
		want  string
	}{
		"none":                           {nil, ""},
		"the root directory":             {map[string]func(*machine) string{"root": root}, "root"},
		"home":                           {map[string]func(*machine) string{"home": home}, "home"},
		"the root directory before home": {map[string]func(*machine) string{"root": root, "home": home}, "root"},
		"the old file":                   {map[string]func(*machine) string{"old": rootOld}, "old"},
		"the old file at home":           {map[string]func(*machine) string{"old": homeOld}, "old"},
		"any new before any old":         {map[string]func(*machine) string{"old": rootOld, "home": home}, "home"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			for user, where := range c.files {
				path := where(m)
				if strings.HasSuffix(path, ".json") {
					m.write(path, configJSON("registry.test="+user))
				} else {
					m.write(path, dockercfg("registry.test="+user))
				}
			}
			if got := m.users("registry.test/shop/web"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestCredentialsAreForTheirRegistryAlone(t *testing.T) {
	m := newMachine(t)
	m.write(filepath.Join(m.root, "config.json"), configJSON(
		"registry.test=all", "registry.test/shop=shop", "https://port.test:5000/v2/=port", "*.wild.test=wild", "https://index.docker.io/v1/=hub"))
	for repository, want := range map[string]string{
		"registry.test/shop/web":    "shop all", // the most specific first
		"registry.test/other":       "all",
		"port.test:5000/app":        "port",
		"port.test/app":             "",
		"a.wild.test/app":           "wild",
		"wild.test/app":             "",
		"docker.io/library/busybox": "hub",
		"registry.test.evil/app":    "",
		"evil/registry.test/app":    "hub", // no host in it: the registry is Docker Hub
		"elsewhere.test/app":        "",
	} {
		if got := m.users(repository); got != want {
			t.Errorf("%s: %q, want %q", repository, got, want)
		}
	}
}

func TestAChangeOfTheFileActsAtOnce(t *testing.T) {
	m := newMachine(t)
	file := filepath.Join(m.root, "config.json")
	configs := m.configs()
	user := func() string {
		auths := configs.For(t.Context(), "registry.test/app")
		if len(auths) == 0 {
			return ""
		}
		return auths[0].GetUsername()
	}
	if got := user(); got != "" {
		t.Errorf("%q before there is a file", got)
	}
	for _, want := range []string{"first", "second"} {
		m.write(file, configJSON("registry.test="+want))
		if got := user(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestAFileThatCannotBeUsedIsReported checks that the path is logged without the content, and that the next file is
// used.
func TestAFileThatCannotBeUsedIsReported(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON":       `top-secret`,
		"a wrong type":  `{"auths": {"registry.test": "top-secret"}}`,
		"no base64":     `{"auths": {"registry.test": {"auth": "top-secret!"}}}`,
		"no colon":      `{"auths": {"registry.test": {"auth": "dG9wLXNlY3JldA=="}}}`,
		"half a file":   `{"auths": {"registry.test": {"auth": "dG9wLXNlY3J`,
		"no addresses":  `{"auths": {"http://[top-secret": {"auth": "` + base64.StdEncoding.EncodeToString([]byte("u:p")) + `"}}}`,
		"empty address": `{"auths": {"": {"auth": "` + base64.StdEncoding.EncodeToString([]byte("u:top-secret")) + `"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			file := filepath.Join(m.root, "config.json")
			m.write(file, content)
			m.write(filepath.Join(m.home, ".docker", "config.json"), configJSON("registry.test=home"))
			want := "home"
			if strings.Contains(name, "address") {
				want = "" // the file as a whole is valid
			}
			if got := m.users("registry.test/app"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			if log := m.log.String(); !strings.Contains(log, "file="+file) || strings.Contains(log, "top-secret") || strings.Contains(log, "dG9wLXNlY3J") {
				t.Errorf("the log has %s, want text with %q, without %q and without %q",
					log, "file="+file, "top-secret", "dG9wLXNlY3J")
			}
		})
	}
}

func withCredentials(auths ...*runtimeapi.AuthConfig) func(*images.Config) {
	return func(cfg *images.Config) {
		cfg.Serial = true
		cfg.Credentials = func(_ context.Context, repository string) []*runtimeapi.AuthConfig {
			if repository != "registry.test/shop/web" {
				return nil
			}
			return auths
		}
	}
}

func TestCredentialsAreTriedInTurn(t *testing.T) {
	const name = "registry.test/shop/web:1"
	old := &runtimeapi.AuthConfig{Username: "old", Password: "old-secret"}
	current := &runtimeapi.AuthConfig{Username: "current", Password: "current-secret"}
	r := newRig(t, withCredentials(old, current))
	r.cri.Protect(name, "current", "current-secret")
	r.want("web", name, v1.PullAlways, "", "")
	if got := r.cri.Count("PullImage", name); got != 2 {
		t.Errorf("%d pulls, want 2", got)
	}
	r.cri.Protect(name, "another", "another-secret")
	const denied = `rpc error: code = PermissionDenied desc = failed to pull image "registry.test/shop/web:1": pull access denied for user `
	r.want("web", name, v1.PullAlways, images.ReasonPull, fmt.Sprintf(`failed to pull image %q: [%s"old" with password "[credential]", %s"current" with password "[credential]"]`, name, denied, denied))
}

// TestCredentialsAreNeverLogged checks all responses of a registry or a proxy. Each place has the password in another
// encoding.
func TestCredentialsAreNeverLogged(t *testing.T) {
	const name, user, password = "registry.test/shop/web:1", "puller", `s3cr3t@"/ %ü+~~~~?`
	both := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	safe := base64.URLEncoding.EncodeToString([]byte(user + ":" + password))
	if both == safe || url.PathEscape(password) == url.UserPassword("", password).String()[1:] {
		t.Fatal("the password is too simple for this test")
	}
	for what, echo := range map[string]string{
		"the password":      "no: " + password,
		"quoted":            fmt.Sprintf("no: %q", password),
		"in a query":        "see https://registry.test/?p=" + url.QueryEscape(password),
		"in a path":         "see https://registry.test/" + url.PathEscape(password),
		"in an address":     `GET "https://` + url.UserPassword(user, password).String() + `@registry.test/": no route`,
		"basic":             "header Authorization: Basic " + both,
		"basic, unpadded":   "header Authorization: Basic " + strings.TrimRight(both, "="),
		"basic, for an URL": "header Authorization: Basic " + safe,
		"an identity":       "token identity-token-1 has expired",
		"a registry token":  "token registry-token-2 has expired",
		"several":           "identity-token-1 registry-token-2 " + password + " " + both,
	} {
		for _, code := range []codes.Code{codes.Unknown, codes.PermissionDenied} {
			t.Run(what+" "+code.String(), func(t *testing.T) {
				r := newRig(t, withCredentials(&runtimeapi.AuthConfig{
					Username: user, Password: password, IdentityToken: "identity-token-1", RegistryToken: "registry-token-2",
				}))
				r.cri.Fail("PullImage", "", -1, status.Error(code, echo))
				_, err := r.ensure("web", name, v1.PullAlways)
				if err == nil {
					t.Fatal("it was pulled")
				}
				_, again := r.ensure("web", name, v1.PullAlways) // the error of the back-off contains it, too
				output := r.allOutput() + err.Error() + again.Error()
				for _, secret := range []string{"s3cr3t", both[:12], "identity-token", "registry-token"} {
					if strings.Contains(output, secret) {
						t.Errorf("%q was told:\n%s", secret, output)
					}
				}
				if !strings.Contains(output, "[credential]") {
					t.Errorf("nothing was hidden:\n%s", output)
				}
			})
		}
	}
}

// TestATextWithAShortPasswordIsReplacedWhole checks that the whole text is replaced.
func TestATextWithAShortPasswordIsReplacedWhole(t *testing.T) {
	r := newRig(t, withCredentials(&runtimeapi.AuthConfig{Username: "puller", Password: "x"}))
	r.cri.Fail("PullImage", "", -1, status.Error(codes.PermissionDenied, "a fox may not"))
	_, err := r.ensure("web", "registry.test/shop/web:1", v1.PullAlways)
	if err == nil || strings.Contains(err.Error(), "fo") || !strings.Contains(err.Error(), "is not shown") {
		t.Errorf("ensure(web, registry.test/shop/web:1) error = %v, want text without %q and with %q",
			err, "fo", "is not shown")
	}
}

// TestAnErrorWithoutASecretIsUnchanged checks this also for pulls with credentials.
func TestAnErrorWithoutASecretIsUnchanged(t *testing.T) {
	r := newRig(t, withCredentials(&runtimeapi.AuthConfig{Username: "puller", Password: "top-secret"}))
	r.cri.Fail("PullImage", "", -1, status.Error(codes.NotFound, "user puller: no such image"))
	_, err := r.ensure("web", "registry.test/shop/web:1", v1.PullAlways)
	if err == nil || !strings.HasSuffix(err.Error(), "rpc error: code = NotFound desc = user puller: no such image") {
		t.Errorf("ensure(web, registry.test/shop/web:1) error = %v, want text ending with %q",
			err, "rpc error: code = NotFound desc = user puller: no such image")
	}
	if !slices.ContainsFunc(r.spans.Ended(), func(s trace.ReadOnlySpan) bool { return s.Name() == "image.pull" }) {
		t.Error("the pull has no span")
	}
}
