package probecalls_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// execRig is a rig with a container in a runtime.
type execRig struct {
	*rig
	cri *fakecri.Server
	id  string
}

func newExecRig(t testing.TB) *execRig {
	t.Helper()
	e := &execRig{rig: newRig(t), cri: fakecri.New(t)}
	runtime := harness.ConnectCRI(t.Context(), t, e.cri.Endpoint()).Runtime
	e.cri.AddImage("hello", 1)
	e.id = startContainer(t, runtime, "hello", nil)
	e.config.Runtime = func() (internalapi.RuntimeService, error) { return runtime, nil }
	e.Caller = probecalls.New(e.config)
	return e
}

// startContainer starts a container in a sandbox of its own.
func startContainer(t testing.TB, runtime internalapi.RuntimeService, image string, args []string) (id string) {
	t.Helper()
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "u1"}, Linux: &runtimeapi.LinuxPodSandboxConfig{},
	}
	pod, err := runtime.RunPodSandbox(t.Context(), sandbox, "")
	if err != nil {
		t.Fatal(err)
	}
	id, err = runtime.CreateContainer(t.Context(), pod, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: image}, Args: args, Linux: &runtimeapi.LinuxContainerConfig{},
	}, sandbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

// command returns a probe that runs a command in the container.
func (e *execRig) command(t testing.TB, command ...string) probecalls.Target {
	t.Helper()
	to := target(t, unusedAddress(t), v1.ProbeHandler{Exec: &v1.ExecAction{Command: command}})
	to.ContainerID, to.PodIP = e.id, "" // it needs no address
	return to
}

func TestACommandsExitCodeIsTheAnswer(t *testing.T) {
	e := newExecRig(t)
	long := strings.Repeat("x", 11<<10)
	for _, c := range []struct {
		name           string
		stdout, stderr string
		code           int32
		want           want
	}{
		{"well", "ok", "", 0, want{outcome: probecalls.Success, output: "ok"}},
		{"silent", "", "", 0, want{outcome: probecalls.Success}},
		{"ill", "out", "err", 1, want{outcome: probecalls.Failure, output: "outerr"}},
		{"killed", "", "", 137, want{outcome: probecalls.Failure}},
		{"much", long, long, 1, want{outcome: probecalls.Failure, output: long[:10<<10]}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e.cri.OnExec(func(string, []string) (stdout, stderr []byte, code int32) {
				return []byte(c.stdout), []byte(c.stderr), c.code
			})
			got := e.Probe(t.Context(), e.command(t, "check"))
			c.want.check(t, got)
			if len(got.Output) > 10<<10 {
				t.Errorf("the output has %d bytes", len(got.Output))
			}
		})
	}
}

func TestACommandHasTheValuesOfTheSpecAndNoOthers(t *testing.T) {
	e := newExecRig(t)
	var ran []string
	e.cri.OnExec(func(_ string, command []string) (stdout, stderr []byte, code int32) {
		ran = command
		return nil, nil, 0
	})
	to := e.command(t, "check", "$(PORT)$(PORT)", "$$(PORT)", "$(NAME)", "$(UNKNOWN)", "$PORT")
	to.Container.Env = []v1.EnvVar{
		{Name: "PORT", Value: "80"}, {Name: "NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
	}
	e.Probe(t.Context(), to)
	if want := []string{"check", "8080", "$(PORT)", "", "$(UNKNOWN)", "$PORT"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q, want %q", ran, want)
	}
}

// TestACommandThatTakesTooLongHasFailed also checks that the event does not contain the value of a variable.
func TestACommandThatTakesTooLongHasFailed(t *testing.T) {
	e := newExecRig(t)
	e.cri.Fail("ExecSync", "", -1, status.Error(codes.DeadlineExceeded, "timeout 1s exceeded"))
	to := e.command(t, "login", "$(PASSWORD)")
	to.Container.Env = []v1.EnvVar{{Name: "PASSWORD", Value: "hunter2"}}
	to.Probe.TimeoutSeconds = 1
	want{outcome: probecalls.Failure, output: `command timed out: "login $(PASSWORD)" timed out after 1s`}.check(t, e.Probe(t.Context(), to))
	if n := e.cri.Count("ExecSync", ""); n != 1 {
		t.Errorf("it was called %d times, want 1", n)
	}
	if got := e.events(); len(got) != 1 || strings.Contains(got[0], "hunter2") {
		t.Errorf("told %q, want exactly one and got[0] without %q", got, "hunter2")
	}
}

func TestARuntimeThatCannotRunACommandSaysNothingOfTheContainer(t *testing.T) {
	e := newExecRig(t)
	e.cri.Fail("ExecSync", "", -1, status.Error(codes.Unavailable, "no shim for "+strings.Repeat("0123abcd", 8)))
	got := e.Probe(t.Context(), e.command(t, "check"))
	want{outcome: probecalls.Unknown, output: "no shim"}.check(t, got)
	if got.Output != "no shim for main" {
		t.Errorf("people are told %q, want %q", got.Output, "no shim for main")
	}
	if n := e.cri.Count("ExecSync", ""); n != 3 {
		t.Errorf("it was called %d times, want 3", n)
	}
	// With the ID, each container would have a separate event.
	if got, want := e.events(), []string{"web main Unhealthy: Readiness probe errored and resulted in unknown state: no shim for main"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// mute is a runtime that does not answer the first calls, as one that has lost the command.
type mute struct {
	internalapi.RuntimeService // nothing else is called

	unanswered int
}

// ExecSync implements the CRI; a client says this when the time of its caller is over.
func (m *mute) ExecSync(ctx context.Context, _ string, _ []string, _ time.Duration) (stdout, stderr []byte, err error) {
	if m.unanswered > 0 {
		m.unanswered--
		<-ctx.Done()
		return nil, nil, criclient.ErrCommandTimedOut
	}
	return []byte("ok"), nil, nil
}

// TestACommandThatTheRuntimeHasLostIsRunAgain has failed only if the runtime answers none of three attempts.
func TestACommandThatTheRuntimeHasLostIsRunAgain(t *testing.T) {
	lost := `command timed out: "check" timed out after 1s, and for 30s more the runtime has not answered`
	for _, c := range []struct {
		unanswered int
		takes      time.Duration
		want       want
	}{
		{1, 31 * time.Second, want{outcome: probecalls.Success, output: "ok"}},
		{2, 62 * time.Second, want{outcome: probecalls.Success, output: "ok"}},
		{3, 93 * time.Second, want{outcome: probecalls.Failure, output: lost}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			runtime := &mute{unanswered: c.unanswered}
			r.config.Runtime = func() (internalapi.RuntimeService, error) { return runtime, nil }
			r.Caller = probecalls.New(r.config)
			to := target(t, &net.TCPAddr{Port: 80}, v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check"}}})
			to.Probe.TimeoutSeconds = 1
			began := time.Now()
			c.want.check(t, r.Probe(t.Context(), to))
			if took := time.Since(began); took != c.takes {
				t.Errorf("with %d calls without an answer it took %v, want %v", c.unanswered, took, c.takes)
			}
		})
	}
}

func TestAnUnavailableRuntimeIsReported(t *testing.T) {
	r := newRig(t)
	r.config.Runtime = func() (internalapi.RuntimeService, error) { return nil, errors.New("the runtime is away") }
	r.Caller = probecalls.New(r.config)
	to := target(t, unusedAddress(t), v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"check"}}})
	want{outcome: probecalls.Unknown, output: "the runtime is away"}.check(t, r.Probe(t.Context(), to))
	metricstest.Want(t, r.probes, 1, "prober_probe_total", "result", "unknown")
}

func TestACommandThatIsCutShortSaysNothing(t *testing.T) {
	e := newExecRig(t)
	gate := e.cri.Hang("ExecSync", "")
	defer gate.Open()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	want{outcome: probecalls.Unknown, output: "cut short"}.check(t, e.Probe(ctx, e.command(t, "check")))
	soon(t, began)
	if got := e.events(); len(got) != 0 {
		t.Errorf("told %q, want none", got)
	}
}

func TestEventsAreTextWhateverAContainerSays(t *testing.T) {
	e := newExecRig(t)
	e.cri.OnExec(func(string, []string) (stdout, stderr []byte, code int32) { return []byte("no \xff\xfe"), nil, 1 })
	e.Probe(t.Context(), e.command(t, "check"))
	if got := e.events(); len(got) != 1 || !strings.HasSuffix(got[0], "Readiness probe failed: no \uFFFD") {
		t.Errorf("told %q, want exactly one and got[0] ending with %q", got, "Readiness probe failed: no \uFFFD")
	}
}
