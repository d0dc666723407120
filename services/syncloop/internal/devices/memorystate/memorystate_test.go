package memorystate_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memorystate"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

func write(t testing.TB, text string) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := os.WriteFile(filepath.Join(root, memorystate.File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return root
}

func state() memorystate.State {
	return memorystate.State{
		Policy: "Static",
		Nodes: memory.Nodes{0: {Assignments: 1, Group: numa.MaskOf(0), Tables: map[v1.ResourceName]memory.Table{
			"memory": {Total: 9, System: 1, Allocatable: 8, Reserved: 3, Free: 5},
		}}},
		Held: memory.Assignments{"u": {"main": {{Type: "memory", Size: 3, Nodes: numa.MaskOf(0)}}}},
	}
}

// written returns the file of a state. The module oracle compares it with the kubelet's.
func written(t testing.TB, s memorystate.State) string {
	t.Helper()
	root := t.TempDir()
	if err := memorystate.Write(root, s); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, memorystate.File))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAStateIsReadBack(t *testing.T) {
	if read, err := memorystate.Read(t.TempDir()); read != nil || err != nil {
		t.Fatalf("an empty directory has %v, %v", read, err)
	}
	want := state()
	read, err := memorystate.Read(write(t, written(t, want)))
	if err != nil || !reflect.DeepEqual(*read, want) {
		t.Errorf("read %v, %v, want %v", read, err, want)
	}
	none, err := memorystate.Read(write(t, written(t, memorystate.State{Policy: "None"})))
	if err != nil || none.Policy != "None" || len(none.Nodes) > 0 {
		t.Errorf("the state of the policy None is %v, %v", none, err)
	}
}

// TestDamagedStatesAreSetAside checks the checksums of both formats.
func TestDamagedStatesAreSetAside(t *testing.T) {
	kubelet := written(t, state())
	older, _, _ := strings.Cut(kubelet, `,"data"`)
	older += "}"
	if read, err := memorystate.Read(write(t, older)); err != nil || len(read.Held["u"]) != 1 {
		t.Errorf("a state of an older kubelet is %v, %v", read, err)
	}
	for name, text := range map[string]string{
		"nothing": "", "half": kubelet[:50], "changed": strings.ReplaceAll(kubelet, `\"size\":3`, `\"size\":4`),
		"older and changed": strings.ReplaceAll(older, `"size":3`, `"size":4`),
		"no NUMA nodes":     `{"policyName":"Static","machineState":{"0":{"cells":[]}},"checksum":0}`,
		"a node twice":      `{"policyName":"Static","machineState":{"0":{"cells":[1,1]}},"checksum":0}`,
		"an empty node":     `{"policyName":"Static","machineState":{"0":null},"checksum":0}`,
		"an empty table":    `{"policyName":"Static","machineState":{"0":{"cells":[0],"memoryMap":{"memory":null}}}}`,
		"a block of no node": `{"policyName":"Static","machineState":{},"entries":{"u":{"main":[{"numaAffinity":[],` +
			`"type":"memory","size":3}]}},"checksum":0}`,
	} {
		root := write(t, text)
		_, err := memorystate.Read(root)
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

// FuzzRead checks that any file is read or set aside, and that what is read can be restored or is refused.
func FuzzRead(f *testing.F) {
	f.Add(written(f, state()))
	f.Add(`{"policyName":"Static","machineState":{"0":{"cells":[0]}},"entries":{"u":{"main":[]}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		read, err := memorystate.Read(write(t, text))
		var damaged *statedir.DamagedError
		if err != nil {
			if !errors.As(err, &damaged) {
				t.Fatal(err)
			}
			return
		}
		if again, err := memorystate.Read(write(t, written(t, *read))); err != nil || again.Policy != read.Policy {
			t.Fatalf("%v is written, and read as %v, %v", read, again, err)
		}
	})
}
