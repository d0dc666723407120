package nodestatus

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
	"github.com/quartet-node/quartet/services/nodestatus/internal/heartbeats"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// recordedHeartbeats returns a file with two heartbeats, of which change may change the second.
func recordedHeartbeats(t *testing.T, change func(*nodev1.Heartbeat)) string {
	t.Helper()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	var text bytes.Buffer
	w, err := noderecording.NewWriter(&text, now, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	input := nodeobject.Input{
		Settings: nodeobject.Settings{Name: "node", MaxPods: 110, MaxImages: 50},
		Machine:  facts.Machine{CPUs: 2, MemoryBytes: 1 << 30}, StartedAt: now,
		PLEG: nodeobject.Peer{State: nodeobject.PeerHealthy}, SyncLoop: nodeobject.Peer{State: nodeobject.PeerHealthy},
	}
	for i := range 2 {
		input.Now = now.Add(time.Duration(i) * time.Second)
		output := nodeobject.Build(input)
		heartbeat, err := heartbeats.Encode(input, output)
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			change(heartbeat)
		}
		e := noderecording.Entry{
			Time: input.Now, Part: noderecording.Heartbeats, Op: noderecording.Put, Key: "node", Value: heartbeat,
		}
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
		input.Previous = output
	}
	if err := w.End(input.Now); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.jsonl")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRecordedHeartbeatsAreComputedAgain(t *testing.T) {
	var out bytes.Buffer
	differences, err := Replay{File: recordedHeartbeats(t, func(*nodev1.Heartbeat) {}), Out: &out}.Run(t.Context())
	if err != nil || differences > 0 || out.String() != "Compared 2 heartbeats. Differences: none.\n" {
		t.Errorf("%d differences, error %v, want none:\n%s", differences, err, &out)
	}
}

// TestAnotherNodestatusDiffersFromTheRecording changes the result of a heartbeat to that of one that computes
// otherwise.
func TestAnotherNodestatusDiffersFromTheRecording(t *testing.T) {
	file := recordedHeartbeats(t, func(h *nodev1.Heartbeat) {
		h.Output = bytes.Replace(h.GetOutput(), []byte(`"KubeletReady"`), []byte(`"KubeletIsReady"`), 1)
	})
	var out bytes.Buffer
	differences, err := Replay{File: file, Out: &out}.Run(t.Context())
	if err != nil || differences != 1 || !strings.Contains(out.String(), "/Node/status/conditions/Ready/reason") {
		t.Errorf("%d differences, error %v, want one of the reason of Ready:\n%s", differences, err, &out)
	}
}

func TestAnotherConfigurationComputesAnotherNode(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 5\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	file := recordedHeartbeats(t, func(*nodev1.Heartbeat) {})
	differences, err := Replay{File: file, Config: config, JSON: true, Out: &out}.Run(t.Context())
	want := `"object":"/Node/status/capacity/pods","action":"compute","replayed":"5","recorded":"110"`
	if err != nil || differences == 0 || !strings.Contains(out.String(), want) {
		t.Errorf("%d differences, error %v, want %s:\n%s", differences, err, want, &out)
	}
}

func TestARecordingWithoutHeartbeatsCannotBeReplayed(t *testing.T) {
	_, err := Replay{File: "../syncloop/testdata/recordings/start.jsonl"}.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "there is no heartbeat") {
		t.Errorf("%v, want that there are no heartbeats", err)
	}
}

func TestEachHeartbeatIsShownBeforeItIsComputed(t *testing.T) {
	var shown []string
	stop := errors.New("stop")
	file := recordedHeartbeats(t, func(*nodev1.Heartbeat) {})
	_, err := Replay{File: file, Out: io.Discard, Step: func(text string) error {
		shown = append(shown, text)
		if len(shown) == 2 {
			return stop
		}
		return nil
	}}.Run(t.Context())
	if !errors.Is(err, stop) || !strings.HasPrefix(shown[1], "12:00:01.000  line 3  heartbeat") {
		t.Errorf("%q were shown, error %v, want the second heartbeat last", shown, err)
	}
}
