package cpustate_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/cpustate"
)

func write(t testing.TB, text string) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := os.WriteFile(filepath.Join(root, cpustate.File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

// kubelet is a file of a kubelet 1.37.
const kubelet = `{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"main":"1"}},"checksum":3366413135,` +
	`"data":"{\"policyName\":\"static\",\"defaultCpuSet\":\"0\",\"entries\":{\"u\":{\"main\":\"1\"}}}","dataChecksum":209266480}`

// ofPods is a file of a kubelet 1.36 with the gate PodLevelResourceManagers. The module oracle has more of them.
const ofPods = `{"policyName":"static","defaultCpuSet":"0,2","entries":{"one":{"first":"5-6","second":"3-4"},` +
	`"two":{"main":"1"}},"podEntries":{"three":{"cpuSet":"7-8"}},"checksum":1592936135}`

func TestAStateIsReadBack(t *testing.T) {
	root := t.TempDir()
	if state, err := cpustate.Read(root); state != nil || err != nil {
		t.Fatalf("an empty directory has %v, %v", state, err)
	}
	state := cpustate.State{
		Policy: "static", Shared: cpuset.New(0),
		Held: map[types.UID]map[string]cpuset.CPUSet{"u": {"main": cpuset.New(1)}},
	}
	if err := cpustate.Write(root, state); err != nil {
		t.Fatal(err)
	}
	read, err := cpustate.Read(root)
	if err != nil || read.Policy != "static" || !read.Shared.Equals(state.Shared) ||
		!read.Held["u"]["main"].Equals(cpuset.New(1)) {
		t.Errorf("read %v, %v, want %v", read, err, state)
	}
	data, err := os.ReadFile(filepath.Join(root, cpustate.File))
	if err != nil || string(data) != kubelet {
		t.Errorf("written is %s, %v\nwant %s", data, err, kubelet)
	}
}

// TestDamagedStatesAreSetAside checks the checksums of all formats.
func TestDamagedStatesAreSetAside(t *testing.T) {
	older, _, _ := strings.Cut(kubelet, `,"data"`)
	older += "}"
	if read, err := cpustate.Read(write(t, older)); err != nil || read.Shared.String() != "0" {
		t.Errorf("a state of an older kubelet is %v, %v", read, err)
	}
	if read, err := cpustate.Read(write(t, ofPods)); err != nil || read.Held["one"]["second"].String() != "3-4" ||
		len(read.Held) != 2 {
		t.Errorf("a state of a kubelet with CPUs of pods is %v, %v", read, err)
	}
	if read, err := cpustate.Read(write(t, `{"policyName":"none","defaultCpuSet":"","checksum":0}`)); err != nil ||
		read.Policy != "none" {
		t.Errorf("a state without a checksum is %v, %v", read, err)
	}
	for name, text := range map[string]string{
		"nothing": "", "half": kubelet[:50], "changed": strings.ReplaceAll(kubelet, `\"0\"`, `\"0,2\"`),
		"older and changed":     strings.ReplaceAll(older, `"1"`, `"2"`),
		"CPUs of a pod changed": strings.ReplaceAll(ofPods, "7-8", "7-9"),
		"no CPUs of a pod":      strings.ReplaceAll(ofPods, "7-8", "x"),
		"no CPUs":               `{"policyName":"static","defaultCpuSet":"x","checksum":0}`,
	} {
		root := write(t, text)
		_, err := cpustate.Read(root)
		var damaged *statedir.DamagedError
		if !errors.As(err, &damaged) {
			t.Errorf("%s: error = %v, want a DamagedError", name, err)
			continue
		}
		if data, err := os.ReadFile(damaged.Aside); err != nil || string(data) != text {
			t.Errorf("%s: set aside is %q, %v", name, data, err)
		}
	}
}

// FuzzRead checks that any file is read or set aside, and that what is read can be written and read again.
func FuzzRead(f *testing.F) {
	f.Add(kubelet)
	f.Add(ofPods)
	f.Add(`{"policyName":"none","defaultCpuSet":"","entries":{"u":null},"checksum":0}`)
	f.Fuzz(func(t *testing.T, text string) {
		root := write(t, text)
		read, err := cpustate.Read(root)
		if err != nil {
			var damaged *statedir.DamagedError
			if !errors.As(err, &damaged) {
				t.Fatal(err)
			}
			return
		}
		if err := cpustate.Write(root, *read); err != nil {
			t.Fatal(err)
		}
		again, err := cpustate.Read(root)
		if err != nil || !again.Shared.Equals(read.Shared) || len(again.Held) != len(read.Held) {
			t.Fatalf("%v is written, and read as %v, %v", read, again, err)
		}
	})
}
