package show

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/recording"
	"github.com/quartet-node/quartet/internal/stream"
)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// desire publishes a desired pod.
func (n *node) desire(op configv1.Op, p *v1.Pod) {
	n.config.updates.Put(string(p.UID), n.podUpdate(op, p))
}

func (n *node) podUpdate(op configv1.Op, p *v1.Pod) podUpdates {
	n.t.Helper()
	data, err := p.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	return &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Pod{
		Pod: &configv1.PodUpdate{Op: op, Source: "file", Pod: data, Traceparent: traceparent},
	}}
}

func (n *node) sourceReady(name string, ready bool) {
	n.config.updates.Put(
		"source/"+name,
		&configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Source{
			Source: &configv1.SourceState{Name: name, Ready: ready},
		}},
	)
}

func (n *node) desireSome() {
	n.desire(configv1.Op_OP_ADD, pod("default", "hello-node-1", "web"))
	n.desire(configv1.Op_OP_ADD, pod("kube-system", "dns-node-1", "dns"))
	n.sourceReady("file", true)
	n.sourceReady("http", false)
}

func TestUpdatesEndAtTheMarker(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.desireSome()
	golden(t, "updates.txt", n.must("updates"))
	golden(t, "updates-wide.txt", n.must("updates", "-o", "wide"))
	golden(t, "updates.json", n.must("updates", "-o", "json"))
}

func TestUpdatesOfSomePods(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.desireSome()
	for _, args := range [][]string{{"hello"}, {"hello-node-1"}, {"default/hello-node-1"}, {"-n", "default"}} {
		got := n.must(append([]string{"updates"}, args...)...)
		if !strings.Contains(got, "hello-node-1") || strings.Contains(got, "dns") || !strings.Contains(got, "READY") ||
			!strings.Contains(got, "SYNCED") {
			t.Errorf("%v: must() =\n%s\nwant text with %q, without %q, with %q and with %q",
				args, got, "hello-node-1", "dns", "READY", "SYNCED")
		}
	}
	for want, args := range map[string][]string{
		`there is no pod "other": there are hello-node-1, kube-system/dns-node-1`: {"other"},
		`"a/b" is not in the namespace "c"`:                                       {"-n", "c", "a/b"},
		"must be wide or json":                                                    {"-o", "yaml"},
	} {
		if _, _, err := n.run(append([]string{"updates"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

func TestWatchUpdatesTellsAResetFromARemoval(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.ConfigMux)
	n.desireSome()
	r := n.start("updates", "-w", "-o", "wide")
	r.until(r.out, "SYNCED")
	hello := pod("default", "hello-node-1", "web")
	n.desire(configv1.Op_OP_UPDATE, hello)
	r.until(r.out, "UPDATE")
	n.desire(configv1.Op_OP_DELETE, hello)
	r.until(r.out, "DELETE")
	n.desire(configv1.Op_OP_RECONCILE, hello)
	r.until(r.out, "RECONCILE")
	n.config.updates.DeleteWith(string(hello.UID), n.podUpdate(configv1.Op_OP_REMOVE, hello))
	r.until(r.out, "REMOVE")

	// Only the connection is lost: the stream is resumed.
	stop()
	r.until(r.errOut, "configmux is unreachable; waiting until it is reachable again\n")
	stop = n.serve(layout.ConfigMux)
	r.until(r.out, "RESUMED")

	// Another process, which does not know the earlier pod: the pod was not removed, it is unknown.
	stop()
	r.until(r.errOut, "again\nconfigmux is unreachable; waiting until it is reachable again\n")
	n.config.updates = stream.NewLevel[podUpdates](stream.Config{})
	n.sourceReady("file", true)
	n.serve(layout.ConfigMux)
	r.until(r.out, "configmux was restarted")
	n.desire(configv1.Op_OP_RESTORE, hello)
	r.until(r.out, "RESTORE")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	golden(t, "updates-watch.txt", r.out.String())
}

func TestUpdatesOfAConfigmuxThatIsNotThere(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(t.TempDir(), "updates.jsonl")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"updates"}, {"updates", "-w"}, {"updates", "record", file, "--force"}} {
		if _, _, err := n.run(args...); err == nil || !strings.Contains(err.Error(), "cannot reach configmux") {
			t.Errorf("%v: run() error = %v, want an error with %q", args, err, "cannot reach configmux")
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "mine" {
		t.Errorf("the file has %q, %v: nothing could be recorded, so it has to stay", got, err)
	}
}

// readRecording returns the kinds and operations of a complete recording.
func readRecording(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := recording.NewReader(bytes.NewReader(data), path)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if !m.Time.Equal(now) {
			t.Errorf("line %d came at %v, want %v", m.Line, m.Time, now)
		}
		text := strings.TrimPrefix(m.Update.GetFrame().GetKind().String(), "KIND_")
		if m.Update.GetFrame().GetKind() == streamv1.Kind_KIND_OPENED {
			text += " " + strings.TrimPrefix(m.Update.GetFrame().GetOpening().GetStart().String(), "START_")
		}
		if m.Pod != nil {
			text += " " + strings.TrimPrefix(m.Update.GetPod().GetOp().String(), "OP_") + " " + m.Pod.Name
		}
		all = append(all, text)
	}
}

func TestRecordKeepsEveryMessage(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.ConfigMux)
	n.desireSome()
	file := filepath.Join(t.TempDir(), "updates.jsonl")
	r := n.start("updates", "record", file)
	until := func(what string) {
		t.Helper()
		r.untilTrue(what, func() bool {
			data, _ := os.ReadFile(file) // the file may not exist yet
			return bytes.Contains(data, []byte(what))
		})
	}
	until("KIND_SYNCED")
	n.desire(configv1.Op_OP_UPDATE, pod("default", "hello-node-1", "web"))
	until("OP_UPDATE")
	stop()
	r.until(r.errOut, "configmux is unreachable")
	n.serve(layout.ConfigMux)
	until("START_RESUMED")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	want := "OPENED SNAPSHOT; SNAPSHOT ADD hello-node-1; SNAPSHOT ADD dns-node-1; SNAPSHOT; SNAPSHOT; SYNCED; DELTA UPDATE hello-node-1; OPENED RESUMED"
	if got := strings.Join(readRecording(t, file), "; "); got != want {
		t.Errorf("the recording has\n%s, want\n%s", got, want)
	}
	if got := r.out.String(); got != "Recorded 8 messages in "+file+"\n" {
		t.Errorf("it said %q, want %q", got, "Recorded 8 messages in "+file+"\n")
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file has the mode %v, %v, want only its owner to read it", info.Mode(), err)
	}
}

func TestRecordReplacesOnlyWhatItMay(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.sourceReady("file", true)
	dir := t.TempDir()
	file, link := filepath.Join(dir, "updates.jsonl"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("mine"), 0o644), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"is there already: name another file, or replace it with --force": {file},
		"is no regular file, and is not replaced":                         {link, "--force"},
		dir + " is no regular file":                                       {dir, "--force"},
		"say where to: quartet updates record FILE":                       {},
		"--for: -1s: must be more than 0":                                 {file, "--for=-1s"},
		"no such file or directory":                                       {filepath.Join(dir, "no", "file")},
	} {
		if _, _, err := n.run(
			append([]string{"updates", "record"}, args...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "mine" {
		t.Fatalf("the file has %q, %v, want it as it was", data, err)
	}
	n.must("updates", "record", file, "--force", "--for", "100ms")
	readRecording(t, file) // the recording is complete, however few messages it has
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file that was replaced has the mode %v, %v", info.Mode(), err)
	}
}
