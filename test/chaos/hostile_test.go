package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// faultPause is the longest pause between two hostile deeds.
	faultPause = 6 * time.Second
	// longestStop is the longest time for which a process is stopped, and longestFull that for which a disk is full. The
	// watchdogs end a process that is stopped for 20 s.
	longestStop = 4 * time.Second
	longestFull = 8 * time.Second
	// diskSize is the size of the file systems of records.
	diskSize = "size=256k"
)

// disks are the directories of records that have a file system of their own, which is full at times.
func disks() []string { return []string{"endings", "probes", "resizes"} }

// damageable are the files that are damaged. The last good versions of manifests are not among them, because the test
// also breaks manifests, and a pod whose last good version is lost ends.
func damageable() []string {
	return []string{
		"evictions.json", "endings/*.json", "probes/*.json", "resizes/*.json", "pleg-told", "nodestatus.json",
		"told-node.json", "oom-told.json", "root/cpu_manager_state", "root/memory_manager_state",
		"root/dra_manager_state", deviceCheckpoint,
	}
}

// hostility stops processes, damages files and fills disks.
type hostility struct {
	node   *testNode
	random *rand.Rand
	// over are what ends the deeds that are under way, by their times.
	over map[time.Time]func()
}

// newHostility mounts the file systems of records of a node that runs and has no pods yet.
func newHostility(t *testing.T, n *testNode, random *rand.Rand) *hostility {
	t.Helper()
	for _, name := range disks() {
		dir := filepath.Join(n.Layout.StateDir(), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, diskSize+",mode=0700"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // before the node is removed
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	return &hostility{node: n, random: random, over: map[time.Time]func(){}}
}

// next returns the earliest time at which a deed ends; ok is false if none is under way.
func (h *hostility) next() (at time.Time, ok bool) {
	for end := range h.over {
		if !ok || end.Before(at) {
			at, ok = end, true
		}
	}
	return at, ok
}

// end ends the deeds that are over by a time.
func (h *hostility) end(by time.Time) {
	for at, undo := range h.over {
		if !at.After(by) {
			undo()
			delete(h.over, at)
		}
	}
}

// act does something hostile, and returns a description.
func (h *hostility) act(t *testing.T) string {
	t.Helper()
	switch h.random.IntN(3) {
	case 0:
		return h.stop(t)
	case 1:
		return h.damage(t)
	default:
		return h.fill(t)
	}
}

// stop suspends a process for a while.
func (h *hostility) stop(t *testing.T) string {
	t.Helper()
	names := processes()
	name := names[h.random.IntN(len(names))]
	lasts := time.Duration(h.random.Int64N(int64(longestStop)))
	id := h.node.runs(t, name)
	if id == 0 || syscall.Kill(id, syscall.SIGSTOP) != nil {
		return "stop nothing: " + name + " does not run"
	}
	resume := func() { _ = syscall.Kill(id, syscall.SIGCONT) } // it may have been killed
	h.over[time.Now().Add(lasts)] = resume
	// A call of the test that waits for the stopped process must not prolong the stop.
	timer := time.AfterFunc(lasts, resume)
	t.Cleanup(func() { timer.Stop() })
	return fmt.Sprintf("stop %s for %v", name, lasts.Round(time.Millisecond))
}

// damage damages a file. Its process reads it when it starts again.
func (h *hostility) damage(t *testing.T) string {
	t.Helper()
	var files []string
	for _, pattern := range damageable() {
		found, err := filepath.Glob(filepath.Join(h.node.Layout.StateDir(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return "damage nothing: there is no file"
	}
	slices.Sort(files)
	file := files[h.random.IntN(len(files))]
	content, err := os.ReadFile(file)
	if err != nil {
		return "damage nothing: " + err.Error() // it was removed just now
	}
	kinds := []string{"truncated", "empty", "zeros", "a flipped bit"}
	kind := kinds[h.random.IntN(len(kinds))]
	switch {
	case kind == "truncated":
		content = content[:len(content)/2]
	case kind == "empty" || len(content) == 0:
		content = nil
	case kind == "zeros":
		content = make([]byte, len(content))
	default:
		content = bytes.Clone(content)
		content[h.random.IntN(len(content))] ^= 1 << h.random.IntN(8)
	}
	err = os.WriteFile(file, content, 0o600)
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return fmt.Sprintf("damage %s: %s", strings.TrimPrefix(file, h.node.Layout.StateDir()+"/"), kind)
}

// fill fills the disk of records for a while.
func (h *hostility) fill(t *testing.T) string {
	t.Helper()
	name := disks()[h.random.IntN(len(disks()))]
	lasts := time.Duration(h.random.Int64N(int64(longestFull)))
	ballast := filepath.Join(h.node.Layout.StateDir(), name, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk of %s: %v, want %v", name, err, unix.ENOSPC)
	}
	h.over[time.Now().Add(lasts)] = func() {
		if err := os.Remove(ballast); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
	}
	return fmt.Sprintf("fill the disk of %s for %v", name, lasts.Round(time.Millisecond))
}
