package subpath_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// raceTime is the duration of each race, some thousand turns.
const raceTime = 200 * time.Millisecond

// FuzzALinkThatComesMeanwhileLeadsNowhere replaces a part of the path by a link out of the volume and back, as fast as
// possible, while the path is created and mounted. Nothing outside the volume may be created or mounted.
func FuzzALinkThatComesMeanwhileLeadsNowhere(f *testing.F) {
	for part := range byte(3) {
		f.Add(part, false, false)
		f.Add(part, true, false)
		f.Add(part, true, true)
	}
	f.Fuzz(func(t *testing.T, part byte, missing, relative bool) { race(t, int(part%3), missing, relative) })
}

// race replaces one part of a/b/c. If missing is true, the path below that part does not exist and must be created.
func race(t *testing.T, part int, missing, relative bool) {
	r := newRig(t)
	parts := []string{"a", "b", "c"}
	r.write("outside/secret", "outside")
	r.write(filepath.Join("outside", "a", "secret"), "outside")
	if !missing {
		r.write(filepath.Join("outside", filepath.Join(parts[part+1:]...), "secret"), "outside")
	}
	at := filepath.Join(r.volume, filepath.Join(parts[:part+1]...))
	to := r.outside
	if relative {
		to = strings.Repeat("../", part+1) + "outside"
	}
	link, folder := filepath.Join(r.volume, "link"), filepath.Join(r.volume, "folder")
	r.must(os.MkdirAll(filepath.Dir(at), 0o750))
	r.must(os.Symlink(to, link))
	inside := folder
	if !missing {
		inside = filepath.Join(folder, filepath.Join(parts[part+1:]...))
	}
	r.must(os.MkdirAll(inside, 0o750))
	r.must(os.Rename(folder, at))
	before := tree(t, r.outside)
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for away := true; ; away = !away { // the directory is replaced in every second turn
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, at, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
			if missing && away && part < 2 { // the created directory must be created again
				_ = os.RemoveAll(filepath.Join(link, parts[part+1]))
			}
		}
	})
	defer swapping.Wait()
	defer close(stop)
	mounted, refused := 0, 0
	for end := time.Now().Add(raceTime); time.Now().Before(end); {
		target, err := r.mounts.Prepare(t.Context(), r.request("a/b/c"))
		if err != nil {
			refused++
			continue
		}
		mounted++
		// If it is unmounted already, it has no entries.
		entries, _ := os.ReadDir(target)
		if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == "secret" || e.Name() == "a" }) {
			t.Fatalf("mounted is what is outside: %v", entries)
		}
	}
	if now := tree(t, r.outside); !slices.Equal(now, before) {
		t.Errorf("outside were %v, are now %v", before, now)
	}
	t.Logf("mounted %d times, refused %d times", mounted, refused)
	r.clean()
}

// tree returns all paths in a directory.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
