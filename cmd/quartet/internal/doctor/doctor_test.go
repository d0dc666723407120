package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// expect compares the level of a finding, and checks that its detail and fix contain words.
func expect(t *testing.T, f machine.Finding, level machine.Level, words ...string) {
	t.Helper()
	if f.Level != level {
		t.Errorf("%s is %s (%s), want %s", f.Check, f.Level, f.Detail, level)
	}
	if (f.Fix == "") != (level == machine.OK) {
		t.Errorf("%s is %s and its fix is %q", f.Check, f.Level, f.Fix)
	}
	for _, word := range words {
		if !strings.Contains(f.Detail+"\n"+f.Fix, word) {
			t.Errorf("%s lacks %q: %s\n    fix: %s", f.Check, word, f.Detail, f.Fix)
		}
	}
}

// find returns the findings of one check.
func find(t *testing.T, findings []machine.Finding, check string) []machine.Finding {
	t.Helper()
	var found []machine.Finding
	for _, f := range findings {
		if f.Check == check {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		t.Fatalf("there is no finding %q in %+v", check, findings)
	}
	return found
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// examine returns the patient of a state directory, without compose and an engine.
func examine(t *testing.T, stateDir string, change func(*options, *environment)) *patient {
	t.Helper()
	l, err := layout.New(stateDir)
	if err != nil {
		t.Fatal(err)
	}
	opts := options{stateDir: stateDir, stateDirGiven: true}
	s := environment{machine: machine.This(), command: func(context.Context, string, ...string) (string, error) {
		return "", errors.New("not installed")
	}}
	if change != nil {
		change(&opts, &s)
	}
	return newPatient(t.Context(), s, l, opts)
}

func named(name string, levels ...machine.Level) []machine.Finding {
	var findings []machine.Finding
	for _, level := range levels {
		f := machine.Ok(name, "detail of\n%s", name)
		if level != machine.OK {
			f = f.With(level, f.Detail, "do "+name)
		}
		findings = append(findings, f)
	}
	return findings
}

func TestTheTableIsAlignedAndHasAFixBelowWhatIsNotOk(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out, format: formatText}
	if err := r.begin(); err != nil {
		t.Fatal(err)
	}
	for _, findings := range [][]machine.Finding{named("a", machine.OK), nil, named("mount propagation", machine.Warning), named("c", machine.Fault)} {
		if err := r.show(findings); err != nil {
			t.Fatal(err)
		}
	}
	want := `CHECK              RESULT   DETAIL
a                  ok       detail of a
mount propagation  warning  detail of mount propagation
                            fix: do mount propagation
c                  fault    detail of c
                            fix: do c
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		findings []machine.Finding
		format   format
		code     int
		detail   string
	}{
		"ok":               {named("a", machine.OK), formatText, 0, "0 warnings"},
		"warning":          {named("a", machine.Warning, machine.OK), formatText, 0, "1 warning."},
		"fault":            {named("a", machine.Fault, machine.Fault, machine.Warning), formatText, exitFault, "2 faults and 1 warning"},
		"warning, as JSON": {named("a", machine.Warning), formatJSON, 0, `"warnings": 1`},
		"fault, as JSON":   {named("a", machine.Fault), formatJSON, exitFault, "1 fault and 0 warnings"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := &report{out: &out, format: c.format}
			if err := r.show(c.findings); err != nil {
				t.Fatal(err)
			}
			err := r.end()
			var exit *ExitError
			code := 0
			if errors.As(err, &exit) {
				code = exit.Code
				out.WriteString(err.Error())
			} else if err != nil {
				t.Fatal(err)
			}
			if code != c.code || !strings.Contains(out.String(), c.detail) {
				t.Errorf("it ends with %d and says %s, want %d and %q", code, out.String(), c.code, c.detail)
			}
		})
	}
}

func TestJSONHasEveryFinding(t *testing.T) {
	var out bytes.Buffer
	r := &report{out: &out, format: formatJSON}
	if err := errors.Join(r.begin(), r.show(named("a", machine.OK, machine.Fault))); err != nil {
		t.Fatal(err)
	}
	if err := r.end(); err == nil {
		t.Error("a fault is no error")
	}
	var got struct {
		Findings         []map[string]string
		Faults, Warnings int
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if len(got.Findings) != 2 || got.Faults != 1 || got.Warnings != 0 || got.Findings[0]["result"] != "ok" ||
		got.Findings[1]["fix"] != "do a" {
		t.Errorf("got %+v, want len(Findings) 2, Faults 1, Warnings 0, result %q and fix %q", got, "ok", "do a")
	}
}

// The command line itself: a command that cannot run exits with a code of its own, which the help lists.
func TestACommandThatCannotRunEndsWithItsOwnCode(t *testing.T) {
	execute := func(args ...string) (string, error) {
		root := &cobra.Command{Use: "quartet", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(Command())
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append([]string{"doctor"}, args...))
		return out.String(), root.ExecuteContext(t.Context())
	}
	for _, args := range [][]string{{"--no-such-flag"}, {"-o", "yaml"}, {"an-argument"}, {"--config", "/no/such/file"}} {
		_, err := execute(args...)
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Code != exitCannotRun {
			t.Errorf("doctor %v: got %v, want a %T and exit.Code %v", args, err, exit, exitCannotRun)
		}
	}
	help := Command().Long
	for _, line := range []string{"\n  0  ", "\n  1  ", "\n  2  "} {
		if !strings.Contains(help, line) {
			t.Errorf("the help does not explain exit code %q", line)
		}
	}
}

func TestFindingsComeInOrderAsSoonAsTheyCan(t *testing.T) {
	first, second := make(chan struct{}), make(chan struct{})
	var shown []string
	checks := []check{
		{name: "1", run: func(context.Context) []machine.Finding { <-first; return named("1", machine.OK) }},
		// It can end only because it runs in parallel with the first one.
		{name: "2", run: func(context.Context) []machine.Finding { close(first); return named("2", machine.OK) }},
		// The first one is shown while this one is still running.
		{name: "3", run: func(context.Context) []machine.Finding { <-second; return named("3", machine.OK) }},
	}
	err := runner{timeout: time.Minute, atOnce: 2}.run(t.Context(), checks, func(findings []machine.Finding) error {
		shown = append(shown, findings[0].Check)
		if findings[0].Check == "1" {
			close(second)
		}
		return nil
	})
	if err != nil || strings.Join(shown, " ") != "1 2 3" {
		t.Errorf("shown = %v (%v), want %q", shown, err, "1 2 3")
	}
}

func TestACheckThatHangsIsAFaultAndDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		checks := []check{
			{name: "hangs", run: func(context.Context) []machine.Finding { <-hang; return nil }},
			{
				name: "is told",
				run:  func(ctx context.Context) []machine.Finding { <-ctx.Done(); return named("is told", machine.Warning) },
			},
			one("quick", func() machine.Finding { return machine.Ok("quick", "yes") }),
		}
		var all []machine.Finding
		err := runner{timeout: checkTimeout, atOnce: 1}.run(t.Context(), checks, func(findings []machine.Finding) error {
			all = append(all, findings...)
			return nil
		})
		if err != nil || len(all) != 3 {
			t.Fatalf("all = %+v (%v), want 3 entries", all, err)
		}
		expect(t, all[0], machine.Fault, "no answer within "+checkTimeout.String(), "hangs")
		expect(t, all[1], machine.Warning, "detail of")
		expect(t, all[2], machine.OK)
	})
}

func TestAReaderThatIsGoneEndsTheCommand(t *testing.T) {
	gone := errors.New("broken pipe")
	err := runner{
		timeout: time.Minute,
		atOnce:  1,
	}.run(
		t.Context(),
		[]check{
			one("a", func() machine.Finding { return machine.Ok("a", "") }),
			{
				name: "b",
				run:  func(ctx context.Context) []machine.Finding { <-ctx.Done(); return nil },
			},
		},
		func([]machine.Finding) error { return gone },
	)
	if !errors.Is(err, gone) {
		t.Errorf("run() error = %v, want %v", err, gone)
	}
}

// Every name fits its column, because lines are printed before the next one is known.
func TestNamesOfChecksFitTheirColumn(t *testing.T) {
	p := examine(t, t.TempDir(), nil)
	err := runner{
		timeout: checkTimeout,
		atOnce:  atOnce,
	}.run(
		t.Context(),
		p.checks(),
		func(findings []machine.Finding) error {
			for _, f := range findings {
				if len(f.Check) > checkWidth {
					t.Errorf("%q has %d bytes, the column %d", f.Check, len(f.Check), checkWidth)
				}
			}
			return nil
		},
	)
	if err != nil {
		t.Error(err)
	}
}

func TestConfiguration(t *testing.T) {
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	with := func(content string) *patient {
		write(t, file, content, 0o644)
		return examine(t, t.TempDir(), func(o *options, _ *environment) { o.configFile = file })
	}
	expect(t, examine(t, t.TempDir(), nil).configuration()[0], machine.OK, "the defaults")
	p := with(head + "containerRuntimeEndpoint: unix:///run/crio/crio.sock\nevictionHard: {nodefs.available: 42%}\n")
	expect(t, p.configuration()[0], machine.OK, file)
	if p.runtime.endpoint != "unix:///run/crio/crio.sock" {
		t.Errorf("the runtime is %+v, want endpoint %q", p.runtime, "unix:///run/crio/crio.sock")
	}
	if room := p.room("nodefs"); room.Bytes.Of(100) != 42 || room.Inodes.Of(100) != 0 {
		t.Errorf("the room is %+v, want Of 42 and Of 0", room)
	}
	wrong := with(head + "noSuchField: 1\nnorThis: -3\n").configuration()
	if len(wrong) != 2 {
		t.Fatalf("got %+v, want a finding for each mistake", wrong)
	}
	expect(t, wrong[0], machine.Fault, file+":3", "noSuchField", "mend "+file)
	expect(t, wrong[1], machine.Fault, "norThis")
}

// quartet up writes its configuration to the state directory, with its own runtime in it.
func TestTheConfigurationOfQuartetUpIsFound(t *testing.T) {
	dir := harness.ShortDir(t)
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	write(
		t,
		l.ConfigFile(),
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreadOnlyPort: 4711\ncontainerRuntimeEndpoint: "+l.RuntimeEndpoint()+"\n",
		0o644,
	)
	p := examine(t, dir, nil)
	if p.configFile != l.ConfigFile() || p.runtime.endpoint != l.RuntimeEndpoint() ||
		p.runtime.start != "quartet up --detach --state-dir "+dir {
		t.Errorf("configFile = %q, runtime = %+v, want those of the layout: %q, %q",
			p.configFile, p.runtime, l.ConfigFile(), l.RuntimeEndpoint())
	}
	var names []string
	for _, c := range p.checks() {
		names = append(names, c.name)
	}
	if !strings.Contains(strings.Join(names, ","), "port 4711") {
		t.Errorf("the port of the configuration is not checked: %v", names)
	}
}

func TestAnOutputThatIsClosedIsNotAFaultOfTheMachine(t *testing.T) {
	r := &report{out: closedWriter{}, format: formatText}
	var exit *ExitError
	if err := r.end(); !errors.As(err, &exit) || exit.Code != exitCannotRun {
		t.Errorf("end() error = %v, want a %T and exit.Code %v", err, exit, exitCannotRun)
	}
}

type closedWriter struct{}

func (closedWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
