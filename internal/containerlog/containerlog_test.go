package containerlog_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/containerlog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 60 * time.Second

// folder is the folder of a container's logs.
type folder struct {
	t   *testing.T
	dir string
}

func (f folder) log() string { return filepath.Join(f.dir, "0.log") }

// write appends lines, as a runtime does, to a file of the folder.
func (f folder) write(name string, texts ...string) {
	f.t.Helper()
	file, err := os.OpenFile(filepath.Join(f.dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, text := range texts {
		if _, err := file.WriteString("2026-05-01T11:59:00.123456789Z stdout F " + text + "\n"); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		f.t.Fatal(err)
	}
}

// compress creates NAME.gz of a file, with its time, and removes the file.
func (f folder) compress(name string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	data, err := os.ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		f.t.Fatal(err)
	}
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	_, err = zip.Write(data)
	if err := errors.Join(
		err,
		zip.Close(),
		os.WriteFile(path+".gz", buf.Bytes(), 0o640),
		os.Chtimes(path+".gz", info.ModTime(), info.ModTime()),
		os.Remove(path),
	); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) rename(from, to string) {
	f.t.Helper()
	if err := os.Rename(filepath.Join(f.dir, from), filepath.Join(f.dir, to)); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) read(tail int64) string {
	f.t.Helper()
	var out bytes.Buffer
	if err := containerlog.Read(f.t.Context(), f.log(), containerlog.Options{Tail: tail}, &out); err != nil {
		f.t.Fatal(err)
	}
	return strings.ReplaceAll(out.String(), "\n", " ")
}

func TestAllFilesAreOneLog(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("0.log.20260501-100000", "a", "b")
	f.compress("0.log.20260501-100000")
	f.write("0.log.20260501-110000", "c", "d")
	f.write("0.log.20260501-110000.tmp", "half")
	f.write("0.log", "e", "f")
	// A compressed file that was not removed is not read twice; and files of other logs are not read.
	f.write("0.log.20260501-100000", "a", "b")
	f.write("0.log.bak", "x")
	f.write("10.log", "x")
	f.write("1.log.20260501-110000", "x")
	for tail, want := range map[int64]string{
		-1: "a b c d e f ", 0: "", 1: "f ", 2: "e f ", 3: "d e f ", 4: "c d e f ", 5: "b c d e f ", 6: "a b c d e f ", 7: "a b c d e f ",
	} {
		if got := f.read(tail); got != want {
			t.Errorf("tail %d: got %q, want %q", tail, got, want)
		}
	}
	// During a rotation there is no current file.
	f.rename("0.log", "0.log.20260501-120000")
	if got, want := f.read(3), "d e f "; got != want {
		t.Errorf("without a file in use: got %q, want %q", got, want)
	}
	files, err := containerlog.List(f.log())
	if err != nil || len(files.Rotated) != 3 || len(files.Unused) != 2 || !files.Rotated[0].Compressed ||
		files.Rotated[1].Compressed {
		t.Errorf("List() = %+v, %v, want len(Rotated) 3, len(Unused) 2, Rotated[0].Compressed true and Rotated[1].Compressed false",
			files, err)
	}
}

func TestATailReadsNoMoreThanItNeeds(t *testing.T) {
	f := folder{t, t.TempDir()}
	long := strings.Repeat("x", 50_000)
	f.write("0.log", long+"1", long+"2", long+"3", long+"4")
	if got, want := f.read(2), long+"3 "+long+"4 "; got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
}

func TestWhatIsNoLineOfALogIsShownAsItIs(t *testing.T) {
	f := folder{t, t.TempDir()}
	if err := os.WriteFile(
		f.log(),
		[]byte(
			"2026-05-01T11:59:00Z stdout P be\n2026-05-01T11:59:00Z stdout F gun\nnoise\n2026-05-01T11:59:00Z stderr F cut by a full di",
		),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	if got, want := f.read(-1), "begun noise cut by a full di "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := os.Remove(f.log()); err != nil {
		t.Fatal(err)
	}
	err := containerlog.Read(t.Context(), f.log(), containerlog.Options{Tail: -1}, io.Discard)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), f.log()) {
		t.Errorf("no file at all: %v", err)
	}
}

func TestRemoveTakesAllFilesOfALogAndNoOther(t *testing.T) {
	f := folder{t, t.TempDir()}
	for _, name := range []string{"0.log", "0.log.20260501-100000", "0.log.20260501-100000.gz", "0.log.20260501-110000", "0.log.20260501-110000.tmp", "0.log.bak", "1.log"} {
		f.write(name, "x")
	}
	for range 2 { // a second call is a no-op
		if err := containerlog.Remove(f.log()); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "0.log.bak" || entries[1].Name() != "1.log" {
		t.Errorf("ReadDir() = %v, %v, want 2 entries, entries[0].Name %q and entries[1].Name %q",
			entries, err, "0.log.bak", "1.log")
	}
	if err := containerlog.Remove(filepath.Join(f.dir, "gone", "0.log")); err != nil {
		t.Errorf("without a folder: %v", err)
	}
}

// following is a followed log.
type following struct {
	t    *testing.T
	done chan error

	mu  sync.Mutex
	out bytes.Buffer
	// held blocks the reader in a write.
	held  chan struct{}
	alive atomic.Bool
}

func (f folder) follow(tail int64) *following {
	f.t.Helper()
	r := &following{t: f.t, done: make(chan error, 1)}
	r.alive.Store(true)
	ctx, cancel := context.WithTimeout(f.t.Context(), testTimeout)
	f.t.Cleanup(cancel)
	go func() {
		r.done <- containerlog.Read(ctx, f.log(), containerlog.Options{
			Tail: tail, Follow: true, Running: func(context.Context) (bool, error) { return r.alive.Load(), nil },
		}, r)
	}()
	return r
}

func (r *following) Write(p []byte) (int, error) {
	r.mu.Lock()
	held := r.held
	r.mu.Unlock()
	if held != nil {
		<-held
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

func (r *following) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.ReplaceAll(r.out.String(), "\n", " ")
}

func (r *following) until(want string) {
	r.t.Helper()
	deadline := time.After(testTimeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for r.got() != want {
		select {
		case <-deadline:
			r.t.Fatalf("got %q, want %q", r.got(), want)
		case err := <-r.done:
			r.t.Fatalf("it has ended: %v, after %q", err, r.got())
		case <-tick.C:
		}
	}
}

// hold blocks the reader in its next write until letGo is called.
func (r *following) hold() (letGo func()) {
	held := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = held
	return func() {
		r.mu.Lock()
		r.held = nil
		r.mu.Unlock()
		close(held)
	}
}

// end ends the container; the follower then has read everything.
func (r *following) end(want string) {
	r.t.Helper()
	r.alive.Store(false)
	if err := <-r.done; err != nil {
		r.t.Error(err)
	}
	if got := r.got(); got != want {
		r.t.Errorf("got %q, want %q", got, want)
	}
}

func TestFollowingGoesOnFromAFileThatIsRotated(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("0.log.20260501-090000", "a")
	f.compress("0.log.20260501-090000")
	f.write("0.log", "b")
	r := f.follow(-1)
	r.until("a b ")
	f.rename("0.log", "0.log.20260501-100000")
	f.write("0.log.20260501-100000", "c") // the runtime has not created the next file yet
	r.until("a b c ")
	f.write("0.log", "d")
	r.until("a b c d ")
	// Late writes of the runtime to the former file are not lost.
	f.write("0.log.20260501-100000", "late")
	r.until("a b c d late ")
	f.write("0.log", "e")
	r.until("a b c d late e ")
	// A failed rotation renames it back.
	f.rename("0.log", "0.log.20260501-110000")
	f.rename("0.log.20260501-110000", "0.log")
	f.write("0.log", "f")
	r.until("a b c d late e f ")
	// The last line is written while the container ends, and then the file is rotated again.
	f.write("0.log", "g")
	f.rename("0.log", "0.log.20260501-120000")
	f.write("0.log", "h")
	r.end("a b c d late e f g h ")
}

func TestFollowingEndsWithAPodThatIsRemoved(t *testing.T) {
	f := folder{t, filepath.Join(t.TempDir(), "web")}
	if err := os.Mkdir(f.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	f.write("0.log", "a")
	r := f.follow(-1)
	r.until("a ")
	letGo := r.hold()
	f.write("0.log", "b", "c")
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	letGo()
	r.until("a b c ")
	r.end("a b c ")
}

func TestAFollowerThatIsBehindReadsEveryFile(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("0.log", "a")
	r := f.follow(-1)
	f.write("0.log", "b")
	r.until("a b ")
	letGo := r.hold()
	f.write("0.log", "c")
	for i := range 4 {
		name := fmt.Sprintf("0.log.20260501-10000%d", i)
		f.rename("0.log", name)
		f.write("0.log", fmt.Sprintf("file%d", i))
		if i < 3 {
			f.compress(name)
		}
	}
	letGo()
	r.until("a b c file0 file1 file2 file3 ")
	f.write("0.log", "d")
	r.until("a b c file0 file1 file2 file3 d ")
	r.end("a b c file0 file1 file2 file3 d ")
}

func TestFollowingEndsWithItsContext(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("0.log", "a")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- containerlog.Read(ctx, f.log(), containerlog.Options{Tail: -1, Follow: true,
			Running: func(context.Context) (bool, error) { return true, nil }}, io.Discard)
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want %v", err, context.Canceled)
	}
}
