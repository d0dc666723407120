package syncloop

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

// TestARecordedNodeDecidesTheSameToday replays recordings of nodes, which test/shadow has made. A change of the
// decisions that is intended needs new recordings.
func TestARecordedNodeDecidesTheSameToday(t *testing.T) {
	files, err := filepath.Glob("testdata/recordings/*.jsonl")
	if err != nil || len(files) < 10 {
		t.Fatalf("there are the recordings %v, error %v, want at least ten", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out, log bytes.Buffer
				differences, err := Replay{File: file, Speed: 20, Out: &out, Log: &log}.Run(t.Context())
				if err != nil || differences > 0 || !strings.HasPrefix(out.String(), "Compared ") {
					t.Errorf("%d differences, error %v, want none:\n%s%s", differences, err, &out, &log)
				}
			})
		})
	}
}

// TestABusyMachineDecidesTheSame replays the recordings so fast that no machine keeps up: the clock waits for the
// decisions.
func TestABusyMachineDecidesTheSame(t *testing.T) {
	files, err := filepath.Glob("testdata/recordings/*.jsonl")
	if err != nil || len(files) < 10 {
		t.Fatalf("there are the recordings %v, error %v, want at least ten", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			var out, log bytes.Buffer
			differences, err := Replay{File: file, Speed: 1e6, Out: &out, Log: &log}.Run(t.Context())
			if err != nil || differences > 0 || !strings.HasPrefix(out.String(), "Compared ") {
				t.Errorf("%d differences, error %v, want none:\n%s%s", differences, err, &out, &log)
			}
		})
	}
}

// TestAnotherConfigurationDecidesDifferently replays the start of a pod on a node that takes none.
func TestAnotherConfigurationDecidesDifferently(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 1\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var out, log bytes.Buffer
		differences, err := Replay{
			File: "testdata/recordings/killed-syncloop.jsonl", Config: config, Speed: 20, JSON: true, Out: &out, Log: &log,
		}.Run(t.Context())
		if err != nil || differences == 0 || !strings.Contains(out.String(), "OutOfpods") {
			t.Errorf("%d differences, error %v, want a refusal:\n%s%s", differences, err, &out, &log)
		}
	})
}

func TestARecordingThatCannotBeReadIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none.jsonl")
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Replay{File: file}.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no recording of a node") {
		t.Errorf("%v, want that it is no recording", err)
	}
}
