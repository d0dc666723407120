package atomicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumecontent"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)

// errKilled is the result of every call of a killed process.
var errKilled = errors.New("killed")

// disk executes calls until one fails: only that one, or all that follow too, as with a killed process.
type disk struct {
	*os.Root
	// fails is the number of calls before the one that fails with err; negative for none. A failing write or removal is
	// half done.
	fails int
	err   error
	// log has the calls in order, without the names of versions.
	log []string
}

func (d *disk) step(what, name string) error {
	if first, rest, found := strings.Cut(name, "/"); isVersion(first) {
		name = "VERSION"
		if found {
			name += "/" + rest
		}
	}
	d.log = append(d.log, what+" "+name)
	at := len(d.log) - 1
	if d.fails >= 0 && (at == d.fails || (at > d.fails && errors.Is(d.err, errKilled))) {
		return d.err
	}
	return nil
}

// first reports whether the last call in the log is the one that fails.
func (d *disk) first() bool { return len(d.log)-1 == d.fails }

func (d *disk) Mkdir(name string, mode fs.FileMode) error {
	if err := d.step("mkdir", name); err != nil {
		return err
	}
	return d.Root.Mkdir(name, mode)
}

func (d *disk) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if err := d.step("write", name); err != nil {
		if d.first() {
			_ = d.Root.WriteFile(name, data[:len(data)/2], mode)
		}
		return err
	}
	return d.Root.WriteFile(name, data, mode)
}

func (d *disk) Lchown(name string, uid, gid int) error {
	if err := d.step("chown", name); err != nil {
		return err
	}
	return d.Root.Lchown(name, uid, gid)
}

func (d *disk) Chmod(name string, mode fs.FileMode) error {
	if err := d.step("chmod", name); err != nil {
		return err
	}
	return d.Root.Chmod(name, mode)
}

func (d *disk) Symlink(target, name string) error {
	if err := d.step("link", name); err != nil {
		return err
	}
	return d.Root.Symlink(target, name)
}

func (d *disk) Rename(from, to string) error {
	if err := d.step("rename", from); err != nil {
		return err
	}
	return d.Root.Rename(from, to)
}

func (d *disk) RemoveAll(name string) error {
	if err := d.step("remove", name); err != nil {
		if entries, _ := fs.ReadDir(d.Root.FS(), name); d.first() && len(entries) > 0 {
			_ = d.Root.RemoveAll(path.Join(name, entries[0].Name()))
		}
		return err
	}
	return d.Root.RemoveAll(name)
}

// writeOn is Write on a disk whose call fails after the given number of calls.
func writeOn(t fataler, dir string, files volumecontent.Files, o Options, fails int, err error) (*disk, error) {
	t.Helper()
	root, openErr := os.OpenRoot(dir)
	if openErr != nil {
		t.Fatal(openErr)
	}
	defer func() { _ = root.Close() }()
	d := &disk{Root: root, fails: fails, err: err}
	_, err = writer{root: root, do: d, Options: o}.write(files)
	return d, err
}

// mustWrite writes files and reports whether that changed anything.
func mustWrite(t testing.TB, dir string, files volumecontent.Files, o Options) bool {
	t.Helper()
	changed, err := Write(dir, files, o)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

// texts returns files with mode 0644 from pairs of path and content.
func texts(pairs ...string) volumecontent.Files {
	files := volumecontent.Files{}
	for i := 0; i < len(pairs); i += 2 {
		files[pairs[i]] = volumecontent.File{Data: []byte(pairs[i+1]), Mode: 0o644}
	}
	return files
}

// seen returns the files that a reader sees that opens the current version and reads all of it. It returns an error if
// the version was replaced meanwhile.
func seen(dir string) (map[string]string, error) {
	before, err := os.Readlink(filepath.Join(dir, dataLink))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	all := map[string]string{}
	err = errors.Join(err, filepath.WalkDir(filepath.Join(dir, before), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		rel, _ := filepath.Rel(filepath.Join(dir, before), p)
		all[rel] = string(data)
		return err
	}))
	after, again := os.Readlink(filepath.Join(dir, dataLink))
	if err := errors.Join(err, again); err != nil {
		return nil, err
	}
	if before != after {
		return nil, errors.New("replaced")
	}
	return all, nil
}

func contents(files volumecontent.Files) map[string]string {
	all := map[string]string{}
	for p, f := range files {
		all[p] = string(f.Data)
	}
	return all
}

// holdsJust fails the test unless a directory has exactly these files under the names of the volume.
func holdsJust(t fataler, dir string, files volumecontent.Files) {
	t.Helper()
	if got, err := seen(dir); err != nil || !maps.Equal(got, contents(files)) {
		t.Fatalf("files %v, error %v; want %v", got, err, contents(files))
	}
	want := map[string]bool{dataLink: true}
	for p, f := range files {
		name, _, _ := strings.Cut(p, "/")
		want[name] = true
		if data, err := os.ReadFile(filepath.Join(dir, p)); err != nil || string(data) != string(f.Data) {
			t.Fatalf("%s has %q, error %v; want %q", p, data, err, f.Data)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	version, _ := os.Readlink(filepath.Join(dir, dataLink))
	for _, entry := range entries {
		if name := entry.Name(); !want[name] && name != version {
			t.Fatalf("%s is left in the folder", name)
		}
	}
	if len(entries) != len(want)+1 {
		t.Fatalf("the folder has %v, want %v and a version", entries, slices.Sorted(maps.Keys(want)))
	}
}

// about returns the mode and the owners of a file.
func about(t testing.TB, p string) string {
	t.Helper()
	info, err := os.Lstat(p)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%04o %d:%d", stat.Mode&0o7777, stat.Uid, stat.Gid)
}

func needRoot(t *testing.T) {
	t.Helper()
	require.Root(t, "giving files to others")
}

// fataler is a test, or one random history.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}
