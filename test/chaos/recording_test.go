package chaos

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// recording is a run of `quartet record`. In a run of hours it ends by itself with its largest size.
type recording struct {
	file string
	cmd  *exec.Cmd
	out  logbuffer.Buffer
}

// record begins to record a node. The recording of a failed test is kept.
func record(t *testing.T, n *testNode) *recording {
	t.Helper()
	dir, err := os.MkdirTemp("", "quartet-chaos-recording-")
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{file: filepath.Join(dir, "node.jsonl")}
	r.cmd = exec.Command(filepath.Join(livenode.Bin(), "quartet"), "record", r.file, "--state-dir", n.Layout.StateDir())
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.cmd.ProcessState == nil {
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the recording is %s", r.file)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	eventually.That(t, "all parts are recorded", func() bool {
		data, err := os.ReadFile(r.file)
		for _, part := range []string{"configmux", "pleg", "nodestatus", "syncloop", "pleg-calls", "heartbeats"} {
			if !strings.Contains(string(data), `"part":"`+part+`","op":"synced"`) {
				return false
			}
		}
		return err == nil
	})
	return r
}

// end ends the recording.
func (r *recording) end(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if err := r.cmd.Wait(); err != nil || !strings.Contains(r.out.String(), "Recorded ") {
		t.Fatalf("the recorder ends with %v: %s", err, r.out.String())
	}
	t.Log(strings.TrimSpace(r.out.String()))
}

// differences replays each part against the recording of the others, and returns where it decides differently.
func (r *recording) differences(t *testing.T) (problems []string) {
	t.Helper()
	for _, args := range [][]string{
		{"--part", string(layout.PLEG)}, {"--part", string(layout.NodeStatus)},
		{"--part", string(layout.SyncLoop), "--speed", "100"},
	} {
		out, err := exec.Command(filepath.Join(livenode.Bin(), "quartet"), append([]string{"replay", r.file}, args...)...).CombinedOutput()
		text := strings.TrimSpace(string(out))
		if err != nil {
			problems = append(problems, "the replay of "+args[1]+" decides differently: "+err.Error()+"\n"+text)
			continue
		}
		t.Logf("the replay of %s: %s", args[1], text)
	}
	return problems
}
