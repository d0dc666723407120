package compose

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/leftovers"
)

// debugFile is the second file of a stack with a debugger.
const debugFile = "../../deploy/compose/compose.debug.yaml"

// TestADebuggerBesideOneProcess follows docs/howto/debug.md with a program in the place of Delve: it attaches to the
// first process of one part, which runs without guard, and is the only one that may.
func TestADebuggerBesideOneProcess(t *testing.T) {
	leftovers.Watch(t)
	s := newStack(t)
	program := os.Getenv("QUARTET_TEST_DLV") // a Delve, to try it by hand
	standIn := program == ""
	if standIn {
		program = filepath.Join(t.TempDir(), "dlv")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./testdata/debugger")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	port := freePort(t)
	s.env = append(s.env, "COMPOSE_PROFILES=bundled", "DLV="+program, "DEBUG_PART=syncloop", "DEBUG_PORT="+port,
		"OTEL_EXPORTER_OTLP_ENDPOINT=", "OTLP_ENDPOINT_IN_NETWORK=")
	both := []string{"-f", file, "-f", debugFile}
	compose := func(args ...string) string {
		t.Helper()
		return s.host.Compose(t, s.env, append(both[:4:4], args...)...)
	}
	t.Cleanup(func() { // before the stack's own, which does not know the debugger
		if out, err := s.host.TryCompose(t, s.env, append(both[:4:4], "down")...); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	compose("up", "--detach", "--wait", "--wait-timeout", "180")
	s.place("web", manifest("web"))
	before := instances(s.awaitReady("web"))
	var answer string
	s.await("the debugger is attached", func() bool {
		answer = ask(port, standIn)
		return answer != ""
	}, func() string { return compose("logs", "debugger") })
	if functions := 0; standIn {
		if _, err := fmt.Sscanf(answer, "attached, %d functions", &functions); err != nil || functions < 1000 {
			t.Errorf("the debugger says %q: %v", answer, err)
		}
	}
	for _, service := range append(layout.Services(), "debugger") {
		id := strings.Fields(compose("ps", "--quiet", "--no-trunc", string(service)))[0]
		status, err := os.ReadFile("/proc/" + s.inspect(id, "{{.State.Pid}}") + "/status")
		s.must(err)
		var capabilities uint64
		_, err = fmt.Sscanf(regexp.MustCompile(`CapBnd:\s*\S+`).FindString(string(status)), "CapBnd: %x", &capabilities)
		s.must(err)
		if may := capabilities&(1<<unix.CAP_SYS_PTRACE) != 0; may != (service == "debugger") {
			t.Errorf("%s may trace processes: %t", service, may)
		}
		entry := s.inspect(id, "{{json .Config.Entrypoint}}")
		if strings.Contains(entry, "guard") {
			t.Errorf("%s runs below guard: %s", service, entry)
		}
	}
	if now := instances(s.awaitReady("web")); now != before {
		t.Errorf("with the debugger the pod is another:\nbefore %s\nafter  %s", before, now)
	}
	compose("down")
}

// ask returns what the debugger says; a real one says nothing first.
func ask(port string, standIn bool) string {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", port), time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close() //nolint:errcheck // nothing was written to it
	if !standIn {
		return "connected"
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return ""
	}
	text, _ := io.ReadAll(conn) // an empty answer is tried again
	return strings.TrimSpace(string(text))
}
