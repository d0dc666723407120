// Package leftovers detects what a test has left on the machine: it compares mounts, network interfaces, cgroups,
// processes of a node and packet filter rules before and after. A test that starts a node or an engine calls Watch
// first, so that its check runs after every other clean-up.
//
//	leftovers.Watch(t)
//	host := dockerhost.Start(t)
package leftovers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// patience is the time limit for asynchronous removals: the kernel removes network namespaces, and containers'
	// cgroups, in the background.
	patience = time.Minute
	// interval is the time between two snapshots.
	interval = 200 * time.Millisecond
)

// Snapshot is the state of a machine, one line for each object: its kind, then a name that does not change during its
// life.
type Snapshot struct {
	lines map[string]int
}

// Take takes a snapshot of the machine. It fails when a part cannot be read, because the snapshot would be incomplete;
// only packet filter rules may be unreadable, on a machine without iptables.
func Take() (Snapshot, error) {
	s := Snapshot{lines: map[string]int{}}
	for _, part := range []struct {
		kind string
		read func() ([]string, error)
	}{
		{"mount", mounts}, {"interface", interfaces}, {"cgroup", cgroups}, {"process", processes}, {"rule", rules},
	} {
		names, err := part.read()
		if err != nil {
			return Snapshot{}, fmt.Errorf("reading the objects of kind %s: %w", part.kind, err)
		}
		for _, name := range names {
			s.lines[part.kind+" "+name]++
		}
	}
	return s, nil
}

// Since returns the objects that an earlier snapshot does not have, sorted.
func (s Snapshot) Since(earlier Snapshot) []string {
	var more []string
	for line, n := range s.lines {
		if n > earlier.lines[line] {
			more = append(more, line)
		}
	}
	slices.Sort(more)
	return more
}

// Watch takes a snapshot and, at the end of the test, fails it for each additional object that is still there after the
// patience. Lines that contain one of the given texts do not count.
func Watch(t testing.TB, except ...string) {
	t.Helper()
	before, err := Take()
	if err != nil {
		t.Fatalf("leftovers: %v", err)
	}
	t.Cleanup(func() {
		deadline := time.NewTimer(patience)
		defer deadline.Stop()
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			left, err := leftSince(before, except)
			if err == nil && len(left) == 0 {
				return
			}
			select {
			case <-ticker.C:
			case <-deadline.C:
				t.Errorf("leftovers: the test has left %d things behind (%v):\n  %s", len(left), err, strings.Join(left, "\n  "))
				return
			}
		}
	})
}

func leftSince(before Snapshot, except []string) ([]string, error) {
	now, err := Take()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(now.Since(before), func(line string) bool {
		return slices.ContainsFunc(except, func(text string) bool { return strings.Contains(line, text) })
	}), nil
}
