package shadow

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestARecordedNodeIsReplayed records a node while pods start, crash and go, and while its processes are killed. The
// recording has no secrets and can be replayed: pleg and nodestatus decide the same, and syncloop with another
// configuration otherwise. That it decides the same with the same one is tested in services/syncloop, by a clock that
// no other process of the machine delays.
func TestARecordedNodeIsReplayed(t *testing.T) {
	r := start(t)
	r.place(t, "kept", "serve")
	r.await(t, "kept", harness.Ready)
	file := filepath.Join(t.TempDir(), "node.jsonl")
	stop := r.record(t, file)
	r.place(t, "second", "serve")
	r.place(t, "crashes", "crash")
	r.await(t, "second", harness.Ready)
	killed := []layout.Service{layout.SyncLoop, layout.PLEG, layout.ConfigMux, layout.SyncLoop, layout.NodeStatus}
	for _, service := range killed {
		r.kill(t, service)
		r.place(t, "after-"+string(service), "serve")
		r.await(t, "after-"+string(service), harness.Ready)
	}
	must(t, os.Remove(filepath.Join(r.node.Manifests, "second.yaml")))
	r.until(t, "the removed pod is gone", func() bool { return r.node.Pod(t.Context(), "second") == nil })
	r.await(t, "crashes", func(p *v1.Pod) bool { return p.Status.ContainerStatuses[0].RestartCount >= 2 })
	r.until(t, "every part is recorded again", func() bool { return isWell(t, file) })
	stop()

	r.onlyTheseEnded(t, killed)
	hasCallsAndNoSecrets(t, file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the recording is %v, error %v, want the mode 0600", info, err)
	}
	// The decisions of pleg and nodestatus follow from what they were answered, and not from a clock.
	for part, compared := range map[layout.Service]*regexp.Regexp{
		layout.PLEG:       regexp.MustCompile(`Compared [1-9]\d* pods, [1-9]\d* inspections, [1-9]\d* events\. Differences: none\.`),
		layout.NodeStatus: regexp.MustCompile(`Compared [1-9]\d* heartbeats\. Differences: none\.`),
	} {
		if code, out := replay(t, file, "--part", string(part)); code != 0 || !compared.MatchString(out) {
			t.Errorf("the replay of %s ends with %d, want 0 and %s:\n%s", part, code, compared, out)
		}
	}
	if code, out := replay(t, file, "--speed", "20"); code == 1 || !strings.Contains(out, "Compared 7 pods.") {
		t.Errorf("the replay ends with %d, want seven pods:\n%s", code, out)
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	header := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + livenode.AnyMachine
	must(t, os.WriteFile(config, []byte(header+"maxPods: 4\n"), 0o600))
	if code, out := replay(t, file, "--speed", "20", "--config", config); code != exitDiffers || !strings.Contains(out, "OutOfpods") {
		t.Errorf("the replay with four pods ends with %d, want %d and a refusal:\n%s", code, exitDiffers, out)
	}
}

// onlyTheseEnded checks in the log of the node that no process has ended except by the kills. All four listen on the
// network, and a restart of one is nothing to the others.
func (r *rig) onlyTheseEnded(t *testing.T, killed []layout.Service) {
	t.Helper()
	log, err := os.ReadFile(r.node.LogFile)
	must(t, err)
	var ended []layout.Service
	for line := range strings.Lines(string(log)) {
		if _, rest, found := strings.Cut(line, `msg="a process of the node has ended and is restarted" process=`); found {
			name, _, _ := strings.Cut(rest, " ")
			ended = append(ended, layout.Service(name))
		}
	}
	if !slices.Equal(ended, killed) {
		t.Errorf("%q have ended, want %q, which were killed", ended, killed)
	}
}

// hasCallsAndNoSecrets checks that no value of the environment is in a recording, and that the calls are in it which
// have one: those that make a container.
func hasCallsAndNoSecrets(t *testing.T, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	entries, err := noderecording.Read(bytes.NewReader(data), file)
	must(t, err)
	calls := map[noderecording.Part]map[string]int{noderecording.PLEGCalls: {}, noderecording.SyncLoopCalls: {}}
	for _, e := range entries {
		if e.Value == nil {
			continue
		}
		message, err := proto.Marshal(e.Value)
		must(t, err)
		if bytes.Contains(message, []byte("hunter2")) {
			t.Errorf("line %d of the recording has a secret: %v", e.Line, e.Value)
		}
		if made := calls[e.Part]; made != nil {
			made[e.Key]++
		}
	}
	for method, part := range map[string]noderecording.Part{
		"RunPodSandbox": noderecording.SyncLoopCalls, "CreateContainer": noderecording.SyncLoopCalls,
		"StartContainer": noderecording.SyncLoopCalls, "ExecSync": noderecording.SyncLoopCalls,
		"ListContainers": noderecording.PLEGCalls, "ContainerStatus": noderecording.PLEGCalls,
		"GetContainerEvents": noderecording.PLEGCalls,
	} {
		if calls[part][method] == 0 {
			t.Errorf("no %s is among the %s of the recording: %v", method, part, calls)
		}
	}
}

// kill kills a process of the node.
func (r *rig) kill(t *testing.T, service layout.Service) {
	t.Helper()
	pid := 0
	r.until(t, string(service)+" runs", func() bool {
		pid = r.node.PID(service)
		return pid > 1
	})
	must(t, syscall.Kill(pid, syscall.SIGKILL))
}

// isWell reports whether no part was away, and pleg was healthy, when the last line of a recording was written.
func isWell(t *testing.T, file string) bool {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	well := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		var entry struct {
			Part, Op string
			Value    struct{ Healthy bool }
		}
		if json.Unmarshal([]byte(line), &entry) != nil {
			return false // it is not whole yet
		}
		switch {
		case entry.Part == "health":
			well[entry.Part] = entry.Value.Healthy
		case entry.Op == "down", entry.Op == "synced":
			well[entry.Part] = entry.Op == "synced"
		}
	}
	for _, part := range []string{"configmux", "pleg", "nodestatus", "syncloop", "health"} {
		if !well[part] {
			return false
		}
	}
	return true
}

// record begins a recording, and returns the function that ends it.
func (r *rig) record(t *testing.T, file string) (stop func()) {
	t.Helper()
	var out logbuffer.Buffer
	cmd := exec.Command(filepath.Join(harness.BinDir(t), "quartet"), "record", file, "--state-dir", r.node.Layout.StateDir())
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	r.until(t, "all parts are recorded", func() bool {
		data, err := os.ReadFile(file)
		for _, part := range []string{"configmux", "pleg", "nodestatus", "syncloop"} {
			if !strings.Contains(string(data), `"part":"`+part+`","op":"synced"`) {
				return false
			}
		}
		return err == nil
	})
	return func() {
		t.Helper()
		must(t, cmd.Process.Signal(syscall.SIGINT))
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "Recorded ") {
			t.Fatalf("the recorder ends with %v: %s", err, out.String())
		}
	}
}

func replay(t *testing.T, file string, args ...string) (code int, out string) {
	t.Helper()
	args = append([]string{"replay", file}, args...)
	data, err := exec.Command(filepath.Join(harness.BinDir(t), "quartet"), args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), string(data)
	}
	must(t, err)
	return 0, string(data)
}
