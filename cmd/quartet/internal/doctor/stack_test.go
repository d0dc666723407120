package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/test/harness"
)

// commands has the outputs of programs by their whole command line; a missing one is not installed.
type commands map[string]string

func (c commands) run(_ context.Context, name string, args ...string) (string, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	answer, found := c[line]
	if !found {
		return "", fmt.Errorf("%s: not found", line)
	}
	if text, isError := strings.CutPrefix(answer, "error: "); isError {
		return "", errors.New(text)
	}
	return answer, nil
}

// composed returns docker compose's output for the stack in testdata: the repository's, without the unused fields.
func composed(t *testing.T, compose, file string) commands {
	t.Helper()
	config, err := os.ReadFile("testdata/stack.json")
	if err != nil {
		t.Fatal(err)
	}
	return commands{
		compose + " version --short":                      "2.39.1\n",
		compose + " -f " + file + " config --format json": string(config),
		compose + " -f " + file + " ps --quiet":           "",
	}
}

// withStack returns the patient of a machine with a stack and an engine.
func withStack(t *testing.T, change func(commands), engine http.Handler) *patient {
	t.Helper()
	file := filepath.Join(t.TempDir(), "compose.yaml")
	write(t, file, "", 0o644)
	answers := composed(t, "docker compose", file)
	if change != nil {
		change(answers)
	}
	return examine(t, t.TempDir(), func(o *options, s *environment) {
		o.stackFile, o.stateDirGiven, s.command = file, false, answers.run
		if engine != nil {
			s.engine = unixClient(serveHTTP(t, engine))
		}
	})
}

func serveHTTP(t *testing.T, handler http.Handler) (socket string) {
	t.Helper()
	listener, err := net.Listen("unix", harness.ShortDir(t)+"/docker.sock")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// answers is an engine: it has a body for each path, and 404 for the others.
type answers map[string]string

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, found := a[r.URL.Path]
	if !found {
		http.Error(w, `{"message":"no such thing"}`, http.StatusNotFound)
		return
	}
	if body == "" {
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, body)
}

func TestTheStackSaysWhichNodeIsMeant(t *testing.T) {
	p := withStack(t, nil, nil)
	const state = "/var/lib/quartet-compose"
	if p.stackErr != nil || p.layout.StateDir() != state || p.kubelet.PodLogsDir != state+"/logs/pods" ||
		p.configFile != "/srv/quartet/deploy/compose/kubelet.yaml" {
		t.Fatalf(
			"got %v, %s, logs in %s, configuration %s",
			p.stackErr,
			p.layout.StateDir(),
			p.kubelet.PodLogsDir,
			p.configFile,
		)
	}
	s := p.stack
	if s.project != "quartet" || !s.bundled || s.endpoint != "unix://"+state+"/cri/containerd.sock" {
		t.Errorf("s = %+v, want project %q, bundled true and endpoint %v",
			s, "quartet", "unix://"+state+"/cri/containerd.sock")
	}
	if got := slices.Sorted(maps.Keys(s.ports)); !slices.Equal(got, []int{3000, 4317, 9090, 16686}) ||
		s.ports[3000] != "grafana" {
		t.Errorf("the ports are %v, want got %v and s.ports[3000] %q", s.ports, []int{3000, 4317, 9090, 16686}, "grafana")
	}
	if pleg, jaeger := s.images["pleg"], s.images["jaeger"]; !strings.HasPrefix(pleg, "sha256:") ||
		!strings.HasPrefix(jaeger, "jaegertracing/all-in-one:") {
		t.Errorf("the images are %v, want pleg by its ID and jaeger by its name", s.images)
	}
	if got := s.up("pleg"); got != "docker compose -f "+s.file+" up -d pleg" {
		t.Errorf("it is started by %s, want %s", got, "docker compose -f "+s.file+" up -d pleg")
	}
}

// The stack of the repository must be understood after any change of it.
func TestTheStackOfTheRepositoryIsUnderstood(t *testing.T) {
	root, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	compose := filepath.Join(root, "bin/tools/docker-compose")
	if _, err := os.Stat(compose); err != nil {
		harness.Require(t, fmt.Errorf("%w: run make test-tools", err))
	}
	run := func(ctx context.Context, name string, args ...string) (string, error) {
		if name != "docker-compose" {
			return "", exec.ErrNotFound
		}
		return command(ctx, compose, args...)
	}
	services := "services:"
	for _, name := range append(layout.Services(), "quartet", "containerd") {
		services += fmt.Sprintf("\n  %s: {image: %q}", name, "sha256:"+strings.Repeat("a", 64))
	}
	images := t.TempDir()
	write(t, filepath.Join(images, "dev.yaml"), services, 0o600)
	t.Setenv("QUARTET_IMAGES", images)
	for _, profile := range []string{"bundled", "host"} {
		t.Setenv("COMPOSE_PROFILES", profile)
		s, err := readStack(t.Context(), run, filepath.Join(root, "deploy/compose/compose.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if s.bundled != (profile == "bundled") {
			t.Errorf("with the profile %s it has a runtime of its own: %v", profile, s.bundled)
		}
		if !filepath.IsAbs(s.stateDir) || !strings.HasPrefix(s.endpoint, "unix:///") || !filepath.IsAbs(s.podLogs) ||
			s.configFile != filepath.Join(root, "deploy/compose/kubelet.yaml") {
			t.Errorf("stack = %+v, want absolute paths and an endpoint that begins with unix:///", s)
		}
	}
}

// The document has every check, so that an operator can read about it in advance.
func TestEveryCheckIsInTheDocument(t *testing.T) {
	document, err := os.ReadFile("../../../../docs/howto/troubleshoot.md")
	if err != nil {
		t.Fatal(err)
	}
	p := withStack(t, nil, nil)
	stateDir := t.TempDir()
	if p.layout, err = layout.New(stateDir); err != nil {
		t.Fatal(err)
	}
	write(t, p.layout.PIDFile("pleg"), "1\n", 0o644) // so that the services are checked one by one
	for _, c := range p.checks() {
		name := c.name
		if strings.HasPrefix(name, "port ") {
			name = "port N"
		}
		if !strings.Contains(string(document), "`"+name+"`") {
			t.Errorf("docs/howto/troubleshoot.md does not name the check %q", name)
		}
	}
}

func TestCompose(t *testing.T) {
	check := func(change func(commands, string)) machine.Finding {
		t.Helper()
		p := withStack(t, func(c commands) {
			for line := range c {
				if strings.HasSuffix(line, "ps --quiet") && change != nil {
					change(c, line)
				}
			}
		}, nil)
		return p.checkCompose(t.Context())[0]
	}
	expect(t, check(nil), machine.OK, "2.39.1", "project quartet", "/var/lib/quartet-compose")
	const version = "docker compose version --short"
	expect(
		t,
		check(func(c commands, _ string) { c[version] = "v2.19.1" }),
		machine.Fault,
		"older than 2.20",
		"docker-compose-plugin",
	)
	expect(t, check(func(c commands, _ string) { c[version] = "dev" }), machine.OK, "dev")
	expect(t, check(func(c commands, _ string) { delete(c, version) }), machine.Fault, "neither", "docker-compose-v2")
	expect(t, check(func(c commands, ps string) {
		c[ps] = "error: exit status 1: Error response from daemon: client version 1.53 is too new. Maximum supported API version is 1.41"
	}), machine.Fault, "export DOCKER_API_VERSION=1.41,")
	expect(
		t,
		check(func(c commands, ps string) { c[ps] = "error: Cannot connect to the Docker daemon" }),
		machine.Fault,
		"Cannot connect",
		"ps",
	)
	expect(t, check(func(c commands, ps string) {
		c[strings.Replace(ps, "ps --quiet", "config --format json", 1)] = "error: service \"pleg\" has neither an image nor a build context"
	}), machine.Fault, "has neither an image", "mend")
	expect(t, check(func(c commands, ps string) {
		c[strings.Replace(ps, "ps --quiet", "config --format json", 1)] = `{"name":"other","services":{"web":{"image":"nginx"}}}`
	}), machine.Fault, "no service configmux", "--compose=FILE")

	missing := examine(t, t.TempDir(), func(o *options, s *environment) {
		o.stackFile, s.command = "/no/compose.yaml", commands{version: "2.39"}.run
	})
	expect(t, missing.checkCompose(t.Context())[0], machine.Fault, "/no/compose.yaml", "--compose=FILE")
	for _, notBuilt := range []string{"cannot read ./images/dev.yaml", "open /srv/images/dev.yaml: no such file"} {
		expect(t, check(func(c commands, ps string) {
			c[strings.Replace(ps, "ps --quiet", "config --format json", 1)] = "error: " + notBuilt
		}), machine.Fault, "images/dev.yaml", "make images")
	}
}

// docker compose may be a program of its own instead of a plugin.
func TestComposeAsAProgramOfItsOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "compose.yaml")
	write(t, file, "", 0o644)
	s, err := readStack(t.Context(), composed(t, "docker-compose", file).run, file)
	if err != nil || s.logs("pleg") != "docker-compose -f "+file+" logs pleg" {
		t.Errorf("readStack() = %+v (%v), want logs %v", s, err, "docker-compose -f "+file+" logs pleg")
	}
}

func TestEngine(t *testing.T) {
	check := func(engine http.Handler) machine.Finding {
		return withStack(t, nil, engine).checkEngine(t.Context())[0]
	}
	expect(t, check(answers{"/version": `{"Version":"28.5.1","ApiVersion":"1.51"}`}), machine.OK, "28.5.1", "API 1.51")
	expect(t, check(answers{"/version": `{"Version":"19.03.1","ApiVersion":"1.40"}`}), machine.Fault, "needs API 1.41")
	expect(t, check(answers{"/version": ""}), machine.Fault, "500", "systemctl start docker")

	away := examine(
		t,
		t.TempDir(),
		func(_ *options, s *environment) { s.engine = engineClient("unix://" + t.TempDir() + "/none.sock") },
	)
	expect(t, away.checkEngine(t.Context())[0], machine.Fault, "does not answer", "systemctl start docker")
	elsewhere := examine(t, t.TempDir(), func(_ *options, s *environment) {
		s.engine, s.dockerHost = engineClient("tcp://10.0.0.1:2376"), "tcp://10.0.0.1:2376"
	})
	expect(t, elsewhere.checkEngine(t.Context())[0], machine.Fault, "tcp://10.0.0.1:2376", "unset DOCKER_HOST")
}

func TestImages(t *testing.T) {
	check := func(services ...string) []machine.Finding {
		engine := answers{}
		p := withStack(t, nil, engine)
		for _, image := range p.stack.images {
			engine["/images/"+image+"/json"] = `{"Id":"sha256:1"}`
		}
		for _, service := range services {
			delete(engine, "/images/"+p.stack.images[service]+"/json")
		}
		for _, c := range p.stackChecks() {
			if c.name == "images" {
				return c.run(t.Context())
			}
		}
		t.Fatal("the images are not checked")
		return nil
	}
	expect(t, check()[0], machine.OK, "of the stack")
	expect(t, check("pleg")[0], machine.Fault, "pleg: the image is not there", "make images")
	both := check("prepare", "grafana")
	expect(t, both[0], machine.Fault, "metrics, prepare: the image is not there")
	expect(t, both[1], machine.Warning, "docker pull grafana/grafana:12.0.2")
}

// A port of the stack itself is fine, one of another container of the same engine is not.
func TestPortsOfTheStack(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	port := listener.Addr().(*net.TCPAddr).Port
	check := func(project string) machine.Finding {
		p := withStack(t, nil, answers{"/containers/json": fmt.Sprintf(
			`[{"Labels":{"com.docker.compose.project":%q},"Ports":[{"PrivatePort":16686,"PublicPort":%d},{"PrivatePort":1}]},{"Labels":null}]`,
			project,
			port,
		)})
		p.stack.ports = map[int]string{port: "jaeger"}
		return p.stackPort(port).run(t.Context())[0]
	}
	expect(t, check("quartet"), machine.OK, "jaeger of the stack")
	expect(t, check("another"), machine.Fault, fmt.Sprintf("pid %d", os.Getpid()), "jaeger of the stack", ".env")
}

func TestIsOlder(t *testing.T) {
	for _, c := range []struct {
		version, than string
		want          bool
	}{
		{"1.40", "1.41", true}, {"1.41", "1.41", false}, {"2.5", "1.41", false}, {"v2.19.1", "2.20", true}, {"2.20.0", "2.20", false},
		{"v5.1.0", "2.20", false}, {"dev", "2.20", false}, {"", "2.20", false},
	} {
		if got := isOlder(c.version, c.than); got != c.want {
			t.Errorf("%q is older than %q: %v", c.version, c.than, got)
		}
	}
}

func TestWhereAPathOfAContainerIsOnTheMachine(t *testing.T) {
	var c composeService
	c.Volumes = append(c.Volumes, struct {
		Type   string `json:"type"`
		Source string `json:"source"`
		Target string `json:"target"`
	}{"bind", "/state/run", "/run/quartet"}, struct {
		Type   string `json:"type"`
		Source string `json:"source"`
		Target string `json:"target"`
	}{"volume", "named", "/data"})
	for path, want := range map[string]string{
		"/run/quartet": "/state/run", "/run/quartet/x.sock": "/state/run/x.sock", "/run/quartets": "", "/run": "", "/data/x": "",
	} {
		if got := c.onMachine(path); got != want {
			t.Errorf("%s is at %q, want %q", path, got, want)
		}
	}
}

// TestAStackOfANodeOfASite has no configmux: its syncloop follows that of the site.
func TestAStackOfANodeOfASite(t *testing.T) {
	data, err := os.ReadFile("testdata/stack.json")
	if err != nil {
		t.Fatal(err)
	}
	without := strings.Replace(string(data), `"configmux": {`, `"left-out": {`, 1)
	if _, err := parseStack([]byte(without)); err == nil || !strings.Contains(err.Error(), "no service configmux") {
		t.Errorf("got %v, want that configmux is missing", err)
	}
	const own, site = "unix:///var/lib/quartet-compose/run/configmux.sock", "dns:///configmux.example:7441"
	if _, err := parseStack([]byte(strings.ReplaceAll(without, own, site))); err != nil {
		t.Errorf("got %v for a node of a site, want none", err)
	}
}
