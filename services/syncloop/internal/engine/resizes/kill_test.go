package resizes_test

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/test/killpoint"
)

// sizes are the allocations of a pod, in their order.
func sizes() []resize.Allocation {
	var all []resize.Allocation
	for _, cpu := range []string{"1", "2", "3"} {
		all = append(all, resize.Allocation{Containers: map[string]v1.ResourceRequirements{
			"a": {Requests: podtest.List("cpu", cpu, "memory", "1Mi")},
		}})
	}
	return all
}

// TestAKillBeforeAnySystemCallLosesNoAllocation kills a real process before each system call that changes the records.
// The next process has the allocation before or after the interrupted change, and never a damaged record.
func TestAKillBeforeAnySystemCallLosesNoAllocation(t *testing.T) {
	all := sizes()
	if dir := os.Getenv("RESIZES_TEST_DIR"); dir != "" {
		book := resizes.Open(dir, "", slog.New(slog.DiscardHandler))
		for _, size := range all[1:] { // the first is that of the containers, without a record
			err := book.Note("u1", all[0], func(r *resize.Record) {
				r.Allocated, r.Actuated.Unfinished = size, true
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		book.Forget("u1")
		if err := book.Save("u1"); err != nil {
			t.Fatal(err)
		}
		return
	}
	for n := 1; ; n++ {
		dir := filepath.Join(t.TempDir(), "resizes")
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "RESIZES_TEST_DIR="+dir)
		tr := &killpoint.Tracer{Root: filepath.Dir(dir), Kill: n}
		killed := tr.Run(t, cmd).Signaled()
		book := resizes.Open(dir, "", slog.New(slog.DiscardHandler))
		record, known := book.Get("u1")
		is := slices.IndexFunc(all, record.Allocated.Equal)
		// A rename makes a record take effect.
		renamed := 0
		removed := false
		for _, call := range tr.Calls[:max(len(tr.Calls)-1, 0)] {
			if strings.HasPrefix(call, "rename ") {
				renamed++
			}
			removed = removed || call == "remove resizes/u1.json"
		}
		if want := renamed > 0 && !removed && killed; known != want || known && is != renamed || book.Lost("u1") {
			t.Errorf("killed before %s: the record is %+v, known %t, lost %t; want allocation %d, known %t",
				tr.Calls[len(tr.Calls)-1], record, known, book.Lost("u1"), renamed, want)
		}
		if !killed {
			if n < 8 {
				t.Errorf("the process made only the calls %q", tr.Calls)
			}
			return
		}
	}
}
