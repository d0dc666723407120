package atomicdir

import (
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumecontent"
)

// reader reads a directory continuously, as a program in a container does.
type reader struct {
	dir string

	mu sync.Mutex
	// tried has all versions whose write has begun, by the number in the file "number".
	tried []map[string]string
	// wrong describes the first inconsistency that was read.
	wrong string
	last  int
	stop  chan struct{}
	ended chan struct{}
}

func startReader(dir string) *reader {
	r := &reader{dir: dir, last: -1, stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		for {
			select {
			case <-r.stop:
				return
			default:
				r.look()
			}
		}
	}()
	return r
}

// look reads the current version, unless it is replaced meanwhile.
func (r *reader) look() {
	files, err := seen(r.dir)
	if err != nil || files == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := strconv.Atoi(files["number"])
	switch {
	case r.wrong != "":
	case err != nil || n >= len(r.tried) || !maps.Equal(files, r.tried[n]):
		r.wrong = fmt.Sprintf("it has seen %v, which nobody has written", files)
	case n < r.last:
		r.wrong = fmt.Sprintf("it has seen number %d after %d", n, r.last)
	default:
		r.last = n
	}
}

// tries records a version that is about to be written.
func (r *reader) tries(files volumecontent.Files) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tried = append(r.tried, contents(files))
}

// verdict stops the reader and returns what was wrong.
func (r *reader) verdict() string {
	close(r.stop)
	<-r.ended
	return r.wrong
}

// TestAReaderSeesWholeVersionsForAnyHistory writes random versions. Some writes fail, and some processes are killed at
// any call. A concurrent reader must see only complete versions, in the order of their writes. After a successful write
// it must see that version.
func TestAReaderSeesWholeVersionsForAnyHistory(t *testing.T) {
	paths := []string{"a", "b", "sub/a", "sub/b", "sub/deep/a", "b/a", "other/x"}
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		r := startReader(dir)
		defer func() {
			if wrong := r.verdict(); wrong != "" {
				rt.Fatal(wrong)
			}
		}()
		var inForce map[string]string
		for n := range rapid.IntRange(1, 12).Draw(rt, "writes") {
			files := texts("number", strconv.Itoa(n))
			for _, p := range rapid.SliceOfDistinct(rapid.SampledFrom(paths), rapid.ID[string]).Draw(rt, "paths") {
				if p != "b/a" || files["b"].Mode == 0 {
					files[p] = volumecontent.File{Data: []byte(fmt.Sprintf("%s of %d", p, n)), Mode: 0o644}
				}
			}
			if files["b/a"].Mode != 0 {
				delete(files, "b")
			}
			r.tries(files)
			o := Options{Now: now.Add(time.Duration(n) * time.Second)}
			fails := rapid.IntRange(-10, 30).Draw(rt, "fails at")
			failure := rapid.SampledFrom([]error{errKilled, syscall.ENOSPC, syscall.EIO}).Draw(rt, "of")
			_, err := writeOn(rt, dir, files, o, fails, failure)
			got, readErr := seen(dir)
			switch {
			case readErr != nil:
				rt.Fatalf("write %d: %v", n, readErr)
			case err == nil:
				holdsJust(rt, dir, files)
			case !maps.Equal(got, inForce) && !maps.Equal(got, contents(files)):
				rt.Fatalf("write %d ended with %v: %v in force, want %v or %v", n, err, got, inForce, contents(files))
			}
			inForce = got
		}
	})
}
