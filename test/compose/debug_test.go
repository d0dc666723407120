package compose

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/leftovers"
)

// debugFile is the second file of a stack with a debugger.
const debugFile = "../../deploy/compose/compose.debug.yaml"

// TestADebuggerBesideOneProcess follows docs/howto/debug.md with Delve: it attaches to the first process of one part,
// which runs without guard, stops it at a breakpoint, and lets it go on. It is the only one that may trace a process.
func TestADebuggerBesideOneProcess(t *testing.T) {
	leftovers.Watch(t)
	s := newStack(t)
	d := newDebugger(s)
	d.compose("up", "--detach", "--wait", "--wait-timeout", "180")
	s.place("web", manifest("web"))
	before := instances(s.awaitReady("web"))
	said := d.tell("break housekeep", "continue", "args", "stack 3", "clearall", "exit -c")
	for _, want := range []string{
		`> \[Breakpoint \d\] \S+/loop\.\(\*Loop\)\.housekeep\(\) \S+/housekeeping\.go:\d+`,
		`=>\s*\d+:\s*func \(l \*Loop\) housekeep\(\) \{`, // the source, by the paths of the checkout
		`\nl = \("\*\S+/loop\.Loop"\)\(0x[0-9a-f]+\)`,
		`\d  0x\S+ in \S+/loop\.\(\*Loop\)\.timed\n\s+at \S+/loop\.go:\d+`,
	} {
		if !regexp.MustCompile(want).MatchString(said) {
			t.Errorf("dlv printed\n%s\nwant a match of %s", said, want)
		}
	}
	d.checkPrivileges()
	// syncloop answers only if it goes on.
	if now := instances(s.awaitReady("web")); now != before {
		t.Errorf("with the debugger the pod is another:\nbefore %s\nafter  %s", before, now)
	}
	d.compose("down")
}

// debugger is a stack whose syncloop has a debugger beside it.
type debugger struct {
	*stack
	files         []string
	program, port string
}

// newDebugger adds the debugger to a stack. syncloop is the program that "make images DEBUG=1" puts into its image.
func newDebugger(s *stack) *debugger {
	s.t.Helper()
	bin := harness.BinDir(s.t)
	d := &debugger{stack: s, program: filepath.Join(bin, "tools", "dlv"), port: freePort(s.t)}
	symbols := filepath.Join(bin, "debug", "syncloop")
	for _, path := range []string{d.program, symbols} {
		if _, err := os.Stat(path); err != nil {
			harness.Require(s.t, fmt.Errorf("%w: run make test-tools debug-syncloop", err))
		}
	}
	override := filepath.Join(s.t.TempDir(), "symbols.yaml")
	s.must(os.WriteFile(override, fmt.Appendf(nil,
		"services: { syncloop: { volumes: [{ type: bind, source: %q, target: /syncloop, read_only: true }] } }\n",
		symbols), 0o600))
	d.files = []string{"-f", file, "-f", debugFile, "-f", override}
	s.env = append(s.env, "COMPOSE_PROFILES=bundled", "DLV="+d.program, "DEBUG_PART=syncloop", "DEBUG_PORT="+d.port,
		"OTEL_EXPORTER_OTLP_ENDPOINT=", "OTLP_ENDPOINT_IN_NETWORK=")
	s.t.Cleanup(func() { // before the stack's own, which does not know the debugger
		if out, err := s.host.TryCompose(s.t, s.env, append(slices.Clone(d.files), "down")...); err != nil {
			s.t.Errorf("%v\n%s", err, out)
		}
	})
	return d
}

func (d *debugger) compose(args ...string) string {
	d.t.Helper()
	return d.host.Compose(d.t, d.env, append(slices.Clone(d.files), args...)...)
}

// tell waits until the debugger is attached, gives it commands, and returns what it prints.
func (d *debugger) tell(commands ...string) string {
	d.t.Helper()
	init := filepath.Join(d.t.TempDir(), "init")
	d.must(os.WriteFile(init, []byte(strings.Join(commands, "\n")+"\n"), 0o600))
	var said []byte
	d.await("a client of the debugger is served", func() bool {
		ctx, cancel := context.WithTimeout(d.t.Context(), patience)
		defer cancel()
		client := exec.CommandContext(ctx, d.program, "connect", net.JoinHostPort("127.0.0.1", d.port),
			"--allow-non-terminal-interactive=true", "--init", init)
		client.Env = append(os.Environ(), "TERM=dumb", "XDG_CONFIG_HOME="+filepath.Dir(init))
		var err error
		said, err = client.CombinedOutput()
		return err == nil
	}, func() string { return string(said) + d.compose("logs", "debugger") })
	return string(said)
}

// checkPrivileges checks that only the debugger may trace processes, and that no part runs below guard.
func (d *debugger) checkPrivileges() {
	d.t.Helper()
	for _, service := range append(layout.Services(), "debugger") {
		id := strings.Fields(d.compose("ps", "--quiet", "--no-trunc", string(service)))[0]
		status, err := os.ReadFile("/proc/" + d.inspect(id, "{{.State.Pid}}") + "/status")
		d.must(err)
		var capabilities uint64
		_, err = fmt.Sscanf(regexp.MustCompile(`CapBnd:\s*\S+`).FindString(string(status)), "CapBnd: %x", &capabilities)
		d.must(err)
		if may := capabilities&(1<<unix.CAP_SYS_PTRACE) != 0; may != (service == "debugger") {
			d.t.Errorf("%s may trace processes: %t", service, may)
		}
		entry := d.inspect(id, "{{json .Config.Entrypoint}}")
		if strings.Contains(entry, "guard") {
			d.t.Errorf("%s runs below guard: %s", service, entry)
		}
	}
}
