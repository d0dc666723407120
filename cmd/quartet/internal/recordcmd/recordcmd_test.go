package recordcmd

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/recordfile"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/fakesite"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a command and returns its error as text.
func run(t *testing.T, cmd *cobra.Command, args ...string) string {
	t.Helper()
	cmd.SetArgs(args)
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		return err.Error()
	}
	return ""
}

func TestArgumentsAreChecked(t *testing.T) {
	const recorded = "../../../../services/syncloop/testdata/recordings/start.jsonl"
	for want, args := range map[string][]string{
		"say where to":                     {},
		"--for: 0s: must be more than 0":   {"FILE", "--for", "0s"},
		"--max-size: 0: must be 1 or more": {"FILE", "--max-size", "0"},
	} {
		if got := run(t, RecordCommand(), args...); !strings.Contains(got, want) {
			t.Errorf("record %q: %q, want %q", args, got, want)
		}
	}
	for want, args := range map[string][]string{
		"name a recording":                             {},
		"replay with 'configmux --replay'":             {"FILE", "--part", "configmux"},
		`--part: "kubelet" must be syncloop, pleg or`:  {"FILE", "--part", "kubelet"},
		"--speed: it is for --part syncloop: pleg":     {"FILE", "--part", "pleg", "--speed", "2"},
		"--config: pleg decides by no configuration":   {"FILE", "--part", "pleg", "--config", "FILE"},
		"there is no heartbeat of nodestatus":          {recorded, "--part", "nodestatus"},
		"FILE: no such file":                           {"FILE", "--part", "pleg"},
		"--speed: 0: must be more than 0":              {"FILE", "--speed", "0"},
		"--speed: 1000: must be more than 0 and at mo": {"FILE", "--speed", "1000"},
		`-o: "yaml" must be text or json`:              {"FILE", "-o", "yaml"},
		"no such file":                                 {"no-such-file"},
	} {
		if got := run(t, ReplayCommand(), args...); !strings.Contains(got, want) {
			t.Errorf("replay %q: %q, want %q", args, got, want)
		}
	}
}

func TestNoFileIsMadeOfANodeThatIsAway(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.jsonl")
	if got := run(t, RecordCommand(), file, "--state-dir", t.TempDir()); !strings.Contains(got, "cannot reach configmux") {
		t.Errorf("%q, want that configmux is away", got)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file: %v, want none", err)
	}
}

func TestAFileIsReplacedOnlyByForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.jsonl")
	if err := os.WriteFile(path, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := recordfile.Create(path, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("%v, want a hint to --force", err)
	}
	file, err := recordfile.Create(path, true)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := file.Stat(); err != nil || info.Mode().Perm() != recordfile.Mode || info.Size() != 0 {
		t.Errorf("the file is %v, error %v, want an empty one that only its owner reads", info, err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	if _, err := recordfile.Create(t.TempDir(), true); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("%v, want that a directory is not replaced", err)
	}
}

func TestAStepIsShownAndWaits(t *testing.T) {
	var out bytes.Buffer
	step := stepper(strings.NewReader("\n"), &out)
	if err := step("first"); err != nil || out.String() != "first  [Enter]" {
		t.Errorf("%q, error %v", out.String(), err)
	}
	if err := step("second"); err == nil {
		t.Error("there is no error at the end of the input")
	}
}

// answering is a configmux that answers each subscription to the pods with an error.
type answering struct {
	configv1.UnimplementedConfigServiceServer
	err error
}

func (a answering) WatchPodUpdates(
	*configv1.WatchPodUpdatesRequest, grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	return a.err
}

// nodeOf returns the state directory of a node that has no streams, and whose configmux is elsewhere.
func nodeOf(t *testing.T, configmux configv1.ConfigServiceServer) string {
	t.Helper()
	l, err := layout.New(harness.ShortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	fakesite.Serve(t, configmux).FollowedBy(t, l.StateDir())
	for _, service := range []layout.Service{layout.PLEG, layout.SyncLoop, layout.NodeStatus} {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- rpc.Serve(ctx, rpc.Config{
				Address: l.Address(service), Health: rpc.NewHealth(), Ready: func() { close(ready) },
				Register: func(*grpc.Server) {},
			})
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		<-ready
	}
	return l.StateDir()
}

// Waiting does not help a recorder that configmux refuses.
func TestARefusedRecordingEnds(t *testing.T) {
	for code, want := range map[codes.Code]string{
		codes.FailedPrecondition: "configmux refuses the stream of pod updates: show another certificate",
		codes.PermissionDenied:   "configmux refuses the stream of pod updates: show another certificate",
		codes.Unimplemented:      "configmux does not have the stream of pod updates: it is of an earlier version",
	} {
		dir := nodeOf(t, answering{err: status.Error(code, "show another certificate")})
		file := filepath.Join(dir, "node.jsonl")
		if got := run(t, RecordCommand(), file, "--state-dir", dir); !strings.Contains(got, want) {
			t.Errorf("%v: record() = %q, want %q", code, got, want)
		}
	}
}

// A recording without the state of a part cannot be replayed.
func TestARecordingThatLacksAStreamIsAnError(t *testing.T) {
	dir := nodeOf(t, answering{err: status.Error(codes.Unavailable, "not yet")})
	file := filepath.Join(dir, "node.jsonl")
	got := run(t, RecordCommand(), file, "--state-dir", dir, "--for", "200ms", "--runtime-calls=false")
	for _, want := range []string{file, "configmux", "pleg", "nodestatus", "syncloop", "before the recording ended", "record again"} {
		if !strings.Contains(got, want) {
			t.Errorf("record() = %q, want %q", got, want)
		}
	}
}
