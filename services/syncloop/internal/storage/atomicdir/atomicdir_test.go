package atomicdir

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumecontent"
)

func TestTheFolderIsLaidOutAsAKubeletHasIt(t *testing.T) {
	dir := t.TempDir()
	if !mustWrite(t, dir, texts("name", "web", "user/labels", "a", "user/deep/x", "b"), Options{Now: now}) {
		t.Error("a first write changed nothing")
	}
	links := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			links[entry.Name()] = target
		}
	}
	version := links["..data"]
	delete(links, "..data")
	if !maps.Equal(links, map[string]string{"name": "..data/name", "user": "..data/user"}) || !regexp.MustCompile(`^\.\.2026_01_02_15_04_05\.\d+$`).MatchString(version) {
		t.Errorf("version %s, links %v", version, links)
	}
	if data, err := os.ReadFile(filepath.Join(dir, version, "user/deep/x")); err != nil || string(data) != "b" {
		t.Errorf("ReadFile() = %q, %v, want %q", data, err, "b")
	}
	if len(entries) != 4 {
		t.Errorf("the folder has %v, want 4 entries", entries)
	}
}

func TestModesAndOwners(t *testing.T) {
	needRoot(t)
	defer syscall.Umask(syscall.Umask(0o077)) // the umask must have no effect
	user, group := int64(1234), int64(5678)
	files := volumecontent.Files{
		"plain": {Mode: 0o644}, "sub/secret": {Mode: 0o400}, "none": {Mode: 0}, "sub/token": {Mode: 0o600, UID: &user}, "run": {Mode: 0o755},
	}
	for name, test := range map[string]struct {
		group *int64
		want  map[string]string
	}{
		"without a group": {nil, map[string]string{
			".": "0755 0:0", "sub": "0755 0:0", "plain": "0644 0:0", "sub/secret": "0400 0:0", "none": "0000 0:0", "sub/token": "0600 1234:0", "run": "0755 0:0",
		}},
		"with a group": {&group, map[string]string{
			".": "2755 0:5678", "sub": "2755 0:5678", "plain": "0644 0:5678", "sub/secret": "0440 0:5678", "none": "0440 0:5678", "sub/token": "0640 1234:5678", "run": "0755 0:5678",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustWrite(t, dir, files, Options{Group: test.group, Now: now})
			version, _ := os.Readlink(filepath.Join(dir, "..data"))
			for p, want := range test.want {
				if got := about(t, filepath.Join(dir, version, p)); got != want {
					t.Errorf("%s: %s, want %s", p, got, want)
				}
			}
			if mustWrite(t, dir, files, Options{Group: test.group, Now: now}) {
				t.Error("the same again was written")
			}
		})
	}
}

func TestWhatIsRightStays(t *testing.T) {
	needRoot(t)
	user, group := int64(7), int64(9)
	files := func() volumecontent.Files { return texts("a", "1", "sub/b", "2", "sub/c", "3") }
	for name, test := range map[string]struct {
		change func(dir string, files volumecontent.Files, o *Options)
		writes bool
	}{
		"nothing": {func(string, volumecontent.Files, *Options) {}, false},
		"other data": {func(_ string, f volumecontent.Files, _ *Options) {
			f["sub/b"] = volumecontent.File{Data: []byte("x"), Mode: 0o644}
		}, true},
		"longer data": {func(_ string, f volumecontent.Files, _ *Options) {
			f["sub/b"] = volumecontent.File{Data: []byte("22"), Mode: 0o644}
		}, true},
		"a key less":    {func(_ string, f volumecontent.Files, _ *Options) { delete(f, "a") }, true},
		"a folder less": {func(_ string, f volumecontent.Files, _ *Options) { delete(f, "sub/b"); delete(f, "sub/c") }, true},
		"a key more":    {func(_ string, f volumecontent.Files, _ *Options) { f["d"] = volumecontent.File{Mode: 0o644} }, true},
		"another mode": {func(_ string, f volumecontent.Files, _ *Options) {
			f["a"] = volumecontent.File{Data: []byte("1"), Mode: 0o600}
		}, true},
		"another owner": {func(_ string, f volumecontent.Files, _ *Options) {
			f["a"] = volumecontent.File{Data: []byte("1"), Mode: 0o644, UID: &user}
		}, true},
		"another group":      {func(_ string, _ volumecontent.Files, o *Options) { o.Group = &group }, true},
		"a file renamed":     {func(_ string, f volumecontent.Files, _ *Options) { f["sub/d"] = f["sub/c"]; delete(f, "sub/c") }, true},
		"a file is a folder": {func(_ string, f volumecontent.Files, _ *Options) { f["a/a"] = f["a"]; delete(f, "a") }, true},
		"nothing is left":    {func(_ string, f volumecontent.Files, _ *Options) { clear(f) }, true},
		"a file was changed on the disk": {func(dir string, _ volumecontent.Files, _ *Options) {
			_ = os.WriteFile(filepath.Join(dir, "a"), []byte("!"), 0o644)
		}, true},
		"a file was added on the disk": {func(dir string, _ volumecontent.Files, _ *Options) {
			_ = os.WriteFile(filepath.Join(dir, "sub/x"), nil, 0o644)
		}, true},
		"a folder's mode was changed": {func(dir string, _ volumecontent.Files, _ *Options) { _ = os.Chmod(filepath.Join(dir, "sub"), 0o700) }, true},
		"a version was removed": {func(dir string, _ volumecontent.Files, _ *Options) {
			v, _ := os.Readlink(filepath.Join(dir, "..data"))
			_ = os.RemoveAll(filepath.Join(dir, v))
		}, true},
		"a visible name was removed": {func(dir string, _ volumecontent.Files, _ *Options) { _ = os.Remove(filepath.Join(dir, "sub")) }, false},
		"a visible name leads elsewhere": {func(dir string, _ volumecontent.Files, _ *Options) {
			_ = os.Remove(filepath.Join(dir, "a"))
			_ = os.Symlink("/etc/hostname", filepath.Join(dir, "a"))
		}, false},
		"a runtime's folder to mount at": {func(dir string, _ volumecontent.Files, _ *Options) {
			_ = os.Mkdir(filepath.Join(dir, "sub/mount"), 0o700)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, f, o := t.TempDir(), files(), Options{Now: now}
			mustWrite(t, dir, f, o)
			version, _ := os.Readlink(filepath.Join(dir, "..data"))
			test.change(dir, f, &o)
			if changed := mustWrite(t, dir, f, o); changed != test.writes {
				t.Errorf("written: %v, want %v", changed, test.writes)
			}
			if again, _ := os.Readlink(filepath.Join(dir, "..data")); (again == version) == test.writes {
				t.Errorf("the version was %s and is %s", version, again)
			}
			holdsJust(t, dir, f)
		})
	}
}

func TestOtherFoldersStay(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"nested", "both"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mustWrite(t, dir, texts("a", "1", "both/x", "2"), Options{Now: now})
	mustWrite(t, dir, texts("b", "1"), Options{Now: now})
	for _, name := range []string{"nested", "both"} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLinksOutOfTheFolderAreNotFollowed checks that symbolic links created by a container in the volume are not
// followed.
func TestLinksOutOfTheFolderAreNotFollowed(t *testing.T) {
	outside := t.TempDir()
	kept := filepath.Join(outside, "kept")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"..data": outside, "..data_tmp": outside, "..2020_01_01": outside, "a": outside, "b": "..data/b"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, dir, texts("a", "1", "sub/kept", "2"), Options{Now: now})
			holdsJust(t, dir, texts("a", "1", "sub/kept", "2"))
			if data, err := os.ReadFile(kept); err != nil || string(data) != "kept" {
				t.Errorf("outside: %q, %v, want %q", data, err, "kept")
			}
		})
	}
}

func TestInvalidFilesAreRefusedBeforeAnyWrite(t *testing.T) {
	dir := t.TempDir()
	mustWrite(t, dir, texts("a", "1"), Options{Now: now})
	for _, p := range []string{"../x", "/x", "..data", "", "a/../../x"} {
		if _, err := Write(dir, texts(p, "x"), Options{Now: now}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("write the files of %s: path", dir)) {
			t.Errorf("%q: Write() error = %v, want an error with %q", p, err, fmt.Sprintf("write the files of %s: path", dir))
		}
		holdsJust(t, dir, texts("a", "1"))
	}
	if _, err := Write(filepath.Join(dir, "none"), nil, Options{Now: now}); !os.IsNotExist(err) {
		t.Errorf("a folder that is not there: %v", err)
	}
	taken := t.TempDir()
	if err := os.Mkdir(filepath.Join(taken, "..data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(taken, nil, Options{Now: now}); err == nil ||
		!strings.Contains(err.Error(), "..data is not the link that it has to be; remove it") {
		t.Errorf("a folder in the place of the link: %v", err)
	}
}

func TestAnObjectOfAMebibyte(t *testing.T) {
	dir := t.TempDir()
	files := volumecontent.Files{"large": {Data: bytes.Repeat([]byte("0123456789abcdef"), 1<<16), Mode: 0o644}}
	mustWrite(t, dir, files, Options{Now: now})
	holdsJust(t, dir, files)
	if mustWrite(t, dir, files, Options{Now: now}) {
		t.Error("the same again was written")
	}
}

// life is a history of versions of a directory and the next version.
type life struct {
	before []volumecontent.Files
	next   volumecontent.Files
}

func lives() map[string]life {
	return map[string]life{
		"the first write": {nil, texts("a", "1", "sub/b", "2")},
		"a replacement":   {[]volumecontent.Files{texts("a", "1", "gone", "2", "old/x", "3")}, texts("a", "one", "new", "two", "sub/deep/b", "three")},
		"a removal":       {[]volumecontent.Files{texts("a", "1"), texts("a", "1", "b", "2")}, texts()},
	}
}

// TestAKillBeforeAnyCallLeavesWholeFiles kills the process before each system call of a write, and also with the call
// half done. Readers then see either the old or the new files, and the next process can write any version.
func TestAKillBeforeAnyCallLeavesWholeFiles(t *testing.T) {
	for name, l := range lives() {
		t.Run(name, func(t *testing.T) {
			whole, _ := try(t, l, -1, nil)
			for i := range whole.log {
				for again, files := range map[string]volumecontent.Files{"the same": l.next, "something else": texts("z", "26")} {
					d, dir := try(t, l, i, errKilled)
					where := fmt.Sprintf("killed before call %d, %s, then %s", i+1, d.log[i], again)
					leftWhole(t, dir, l, where)
					mustWrite(t, dir, files, Options{Now: now})
					holdsJust(t, dir, files)
					if mustWrite(t, dir, files, Options{Now: now}) {
						t.Errorf("%s: the same again was written", where)
					}
				}
			}
		})
	}
}

// TestACallThatFailsLeavesWholeFilesAndNothingElse fails each call, as with a full or read-only disk. The error text is
// the same each time, and nothing of the attempt is left.
func TestACallThatFailsLeavesWholeFilesAndNothingElse(t *testing.T) {
	for name, l := range lives() {
		t.Run(name, func(t *testing.T) {
			whole, _ := try(t, l, -1, nil)
			for i := range whole.log {
				full := &os.PathError{Op: "openat", Path: "..2026_01_02_15_04_05.42", Err: syscall.ENOSPC}
				d, dir := try(t, l, i, full)
				where := fmt.Sprintf("call %d, %s, failed", i+1, d.log[i])
				leftWhole(t, dir, l, where)
				if i <= slices.Index(whole.log, "rename ..data_tmp") {
					versions, _ := filepath.Glob(filepath.Join(dir, "..2*"))
					links, _ := filepath.Glob(filepath.Join(dir, "..data_tmp"))
					if len(versions) != min(len(l.before), 1) || len(links) > 0 {
						t.Errorf("%s: %v and %v are left", where, versions, links)
					}
				}
				mustWrite(t, dir, l.next, Options{Now: now})
				holdsJust(t, dir, l.next)
			}
		})
	}
}

// try replays a life. Its last write fails or is killed after the given number of calls.
func try(t *testing.T, l life, fails int, failure error) (*disk, string) {
	t.Helper()
	dir := t.TempDir()
	for _, files := range l.before {
		mustWrite(t, dir, files, Options{Now: now})
	}
	d, err := writeOn(t, dir, l.next, Options{Now: now}, fails, failure)
	switch {
	case fails < 0 && err != nil:
		t.Fatal(err)
	case fails >= 0 && err == nil:
		t.Fatalf("call %d, %s, failed, and nobody was told", fails+1, d.log[fails])
	case err != nil && strings.Contains(err.Error(), "..2026"):
		t.Errorf("the error has the name of a version, another one each time: %v", err)
	}
	return d, dir
}

// leftWhole fails the test unless the current files are those of the last or the next version.
func leftWhole(t *testing.T, dir string, l life, where string) {
	t.Helper()
	var old map[string]string
	if n := len(l.before); n > 0 {
		old = contents(l.before[n-1])
	}
	got, err := seen(dir)
	if err != nil || (!maps.Equal(got, old) && !maps.Equal(got, contents(l.next))) {
		t.Errorf("%s: a reader sees %v, error %v; want %v or %v", where, got, err, old, contents(l.next))
	}
}
