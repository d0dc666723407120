package conformancecmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/conformance"
	"github.com/quartet-node/quartet/services/pleg"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/harness"
)

// asPLEG is the environment variable that makes a process of this binary a pleg.
const asPLEG = "QUARTET_TEST_AS_PLEG"

func TestMain(m *testing.M) {
	if os.Getenv(asPLEG) != "" {
		pleg.Main()
	}
	goleak.VerifyTestMain(m)
}

// execute runs the command line.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out, log bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&log)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	if t.Failed() {
		t.Logf("standard error:\n%s", log.String())
	}
	return out.String(), err
}

// command returns the arguments for a pleg that the command starts.
func command(t *testing.T) []string {
	t.Helper()
	dir := harness.ShortDir(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket, runtime := "unix://"+filepath.Join(dir, "pleg.sock"), filepath.Join(dir, "cri.sock")
	return []string{"pleg", socket, "--serve-runtime", runtime, "--", "env", asPLEG + "=1", self, "--listen=" + socket,
		"--metrics-listen=unix://" + filepath.Join(dir, "metrics.sock"), "--state-dir=" + dir,
		"--container-runtime-endpoint=unix://" + runtime}
}

func TestEachRuleHasALine(t *testing.T) {
	args := command(t)
	args = append([]string{args[0], "--rule=stream-unique,stream-restart,container-died"}, args[1:]...)
	out, err := execute(t, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{
		"RESULT  RULE                   WHY",
		"pass    stream-unique          quartet.stream.v1: no change arrives twice on one subscription, including its resumptions",
		"pass    container-died         quartet.lifecycle.v1.EventType.EVENT_TYPE_CONTAINER_DIED: A container has ended",
		"3 rules passed, 0 failed, 0 were skipped.",
	} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("the output lacks %q:\n%s", line, out)
		}
	}
}

// TestAPartOnTheNetworkIsChecked by TLS at both ends; without a certificate the error names the flags.
func TestAPartOnTheNetworkIsChecked(t *testing.T) {
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	address, ca := fmt.Sprintf("127.0.0.1:%d", port), authority.New(t, "ca")
	tls := func(name string) []string {
		files := ca.Issue(t, t.TempDir(), authority.Request{Name: name, Hosts: []string{name, "127.0.0.1"}})
		return []string{"--tls-cert=" + files.Cert, "--tls-key=" + files.Key, "--tls-ca=" + files.CA}
	}
	local := command(t)
	args := slices.Concat(
		[]string{"pleg", address, "--rule=stream-unique,container-died"}, tls("laptop"), local[2:],
		[]string{"--tls-listen=" + address, "--allowed-names=laptop"}, tls("pleg"),
	)
	out, err := execute(t, args...)
	if err != nil || !strings.Contains(out, "2 rules passed, 0 failed, 0 were skipped.") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := execute(t, "pleg", address); err == nil || !strings.Contains(err.Error(), "--tls-cert") {
		t.Errorf("without a certificate: %v, want the flags", err)
	}
}

func TestWithoutARuntimeItSaysWhyRulesAreSkipped(t *testing.T) {
	args := command(t)
	args = append([]string{"pleg", "-o", "json"}, args[1:]...)
	for i, arg := range args {
		if arg == "--serve-runtime" {
			args = append(args[:i], args[i+2:]...)
			break
		}
	}
	out, err := execute(t, args...)
	var got document
	if decodeErr := json.Unmarshal([]byte(out), &got); decodeErr != nil {
		t.Fatalf("%v, %v:\n%s", decodeErr, err, out)
	}
	if got.Service != "pleg" || got.Skipped == 0 || got.Passed == 0 ||
		len(got.Results) != len(conformance.PLEG().Rules()) {
		t.Errorf("got %+v", got)
	}
	// The runtime that it names is not there, so what needs one fails.
	if err == nil || got.Failed == 0 {
		t.Errorf("a pleg without a runtime keeps the contract: %v", err)
	}
	for _, r := range got.Results {
		if r.Outcome == conformance.Skip && !strings.Contains(r.Why, "--serve-runtime") {
			t.Errorf("%s is skipped because of %q", r.Name, r.Why)
		}
	}
}

func TestWrongArgumentsAreErrors(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"pleg", "unix:///a", "unix:///b"}, "one too many"},
		{[]string{"pleg", "unix:///a", "--"}, "after --"},
		{[]string{"pleg", "-o", "yaml"}, "text or json"},
		{[]string{"nothing"}, "unknown command"},
	} {
		if out, err := execute(t, tc.args...); err == nil || !regexp.MustCompile(tc.want).MatchString(err.Error()) {
			t.Errorf("%q: got %v, want an error with %q\n%s", tc.args, err, tc.want, out)
		}
	}
}

func TestTheRulesAreListed(t *testing.T) {
	out, err := execute(t, "pleg", "--list")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range conformance.PLEG().Rules() {
		if !strings.Contains(out, "\n"+rule.Name+" ") {
			t.Errorf("%s is not in the list:\n%s", rule.Name, out)
		}
	}
}
