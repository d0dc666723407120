package dockerhost_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/dockerhost"
	"github.com/quartet-node/quartet/test/leftovers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hello = "quartet.local/hello:1"

// project runs compose with the project of this test.
func project(t *testing.T, h *dockerhost.Host, args ...string) string {
	t.Helper()
	return h.Compose(t, []string{"WHO=composer"}, append([]string{"--file", "testdata/compose.yaml"}, args...)...)
}

// container has the tested fields of `docker inspect`.
type container struct {
	State struct {
		Pid    int
		Health struct{ Status string }
	}
	HostConfig struct {
		ReadonlyRootfs bool
		CapDrop        []string
		Memory         int64
	}
	Config          struct{ User string }
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

// address returns the address in its only network.
func (c container) address() string {
	for _, network := range c.NetworkSettings.Networks {
		return network.IPAddress
	}
	return ""
}

func inspect(t *testing.T, h *dockerhost.Host, service string) container {
	t.Helper()
	var inspected []container
	id := strings.TrimSpace(project(t, h, "ps", "--quiet", service))
	if err := json.Unmarshal([]byte(h.Docker(t, "inspect", id)), &inspected); err != nil {
		t.Fatal(err)
	}
	return inspected[0]
}

// dialFrom connects to an address from the network of a process.
func dialFrom(pid int, address string) error {
	result := make(chan error)
	go func() {
		// The thread is never unlocked, so it ends with this goroutine: no other code runs in that network.
		runtime.LockOSThread()
		result <- func() error {
			namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
			if err != nil {
				return err
			}
			defer func() { _ = namespace.Close() }()
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			conn, err := net.DialTimeout("tcp", address, 5*time.Second)
			if err != nil {
				return err
			}
			return conn.Close()
		}()
	}()
	return <-result
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// An engine of the test runs what deploy/compose needs, and leaves nothing behind, although the test removes nothing.
func TestAnEngineOfItsOwnLeavesNothingBehind(t *testing.T) {
	leftovers.Watch(t)
	h := dockerhost.StartOwn(t)
	if !h.Own {
		t.Error("the engine is not the test's")
	}
	if got := h.Load(t, "hello"); len(got) != 1 || got[0] != hello {
		t.Fatalf("loaded %q, want exactly one and got[0] %v", got, hello)
	}
	project(t, h, "up", "--detach", "--wait", "web", "visitor")

	c := inspect(t, h, "web")
	if c.State.Health.Status != "healthy" || !c.HostConfig.ReadonlyRootfs || c.Config.User != "65534:65534" ||
		len(c.HostConfig.CapDrop) != 1 || c.HostConfig.Memory != 64<<20 {
		t.Errorf("the container is %+v", c)
	}
	address := strings.TrimSpace(project(t, h, "port", "web", "8080"))
	if body := get(t, "http://"+address+"/"); !strings.HasPrefix(body, "hello composer") {
		t.Errorf("it answers %q, want text beginning with %q", body, "hello composer")
	}
	if err := dialFrom(inspect(t, h, "visitor").State.Pid, c.address()+":8080"); err != nil {
		t.Errorf("one container does not reach the other: %v", err)
	}
	if out, err := h.TryCompose(t, []string{"WHO=x"}, "--file", "testdata/compose.yaml", "--profile", "sick", "up", "--detach", "--wait", "sick"); err == nil ||
		!strings.Contains(err.Error(), "unhealthy") {
		t.Errorf("a container whose health check fails counts as healthy: %v\n%s", err, out)
	}
}

// On a shared engine, image names refer to their former images again after the test.
func TestASharedEngineHasItsImagesBack(t *testing.T) {
	own := dockerhost.StartOwn(t)
	own.Load(t, "hello", "pause")
	own.Docker(t, "tag", "quartet.local/pause:1", hello)
	theirs := own.Docker(t, "image", "inspect", "--format", "{{.Id}}", hello)
	own.Docker(t, "rmi", "quartet.local/pause:1")

	t.Run("a test with the shared engine", func(t *testing.T) {
		t.Setenv("DOCKER_HOST", own.Endpoint)
		h := dockerhost.Start(t)
		if h.Own || h.Endpoint != own.Endpoint || h.APIVersion == "" {
			t.Fatalf("the engine that answers is not used: %+v", h)
		}
		h.Load(t, "hello", "pause")
		if loaded := h.Docker(t, "image", "inspect", "--format", "{{.Id}}", hello); loaded == theirs {
			t.Error("the image is not loaded")
		}
	})
	if back := own.Docker(t, "image", "inspect", "--format", "{{.Id}}", hello); back != theirs {
		t.Errorf("the name is of %s, and was of %s", back, theirs)
	}
	if names := strings.Fields(own.Docker(t, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}")); len(names) != 1 {
		t.Errorf("there was %s alone, and now there is %q, want exactly one", hello, names)
	}
}

// The services depend only on the kernel: an image of one has a static program, its user and its labels.
func TestTheImagesOfTheServicesStart(t *testing.T) {
	h := dockerhost.StartOwn(t)
	users := map[string]string{"configmux": "10241:10240", "pleg": "0:10240", "syncloop": "0:10240", "nodestatus": "10244:10240", "quartet": ""}
	for name, user := range users {
		ref := h.Load(t, name)[0]
		format := `{{.Config.User}}|{{index .Config.Labels "org.opencontainers.image.licenses"}}|{{index .Config.Labels "org.opencontainers.image.title"}}`
		if got, want := strings.TrimSpace(h.Docker(t, "image", "inspect", "--format", format, ref)), user+"|Apache-2.0|quartet "+name; got != want {
			t.Errorf("%s is %q, want %q", ref, got, want)
		}
		out := h.Docker(t, "run", "--rm", "--read-only", "--cap-drop=ALL", "--network=none", ref, "--help")
		if !strings.Contains(out, name) {
			t.Errorf("%s --help prints %q, want text with %q", ref, out, name)
		}
	}
	ref := h.Load(t, "containerd")[0]
	for _, program := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "bridge"} {
		if out, err := h.TryDocker("run", "--rm", "--network=none", "--entrypoint=/runtime/"+program, ref, "--version"); err != nil {
			t.Errorf("%s does not run: %v\n%s", program, err, out)
		}
	}
}
