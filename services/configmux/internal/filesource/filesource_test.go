package filesource

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	overwrite(t, filepath.Join(dir, ".hidden.yaml"), manifest("hidden", "i:1"))
	r := start(t, dir)
	first := r.has(0, "a-node i:1")
	if first.Mode != "inotify" || first.ReadAt.IsZero() {
		t.Errorf("mode %q, read at %v", first.Mode, first.ReadAt)
	}

	replace(
		t,
		filepath.Join(dir, "b.json"),
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}`,
	)
	r.has(0, "a-node i:1", "b-node i:1")
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:2"))
	r.has(0, "a-node i:2", "b-node i:1")
	overwrite(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:3"))
	r.has(0, "a-node i:3", "b-node i:1")
	must(t, os.Remove(filepath.Join(dir, "a.yaml")))
	r.has(0, "b-node i:1")
	must(t, os.Rename(filepath.Join(dir, "b.json"), filepath.Join(dir, ".b.json")))
	r.has(0)
}

func TestUnchangedPodsStayTheSamePointers(t *testing.T) {
	dir := t.TempDir()
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	r := start(t, dir)
	before := r.has(0, "a-node i:1").Pods[0].Pod
	replace(t, filepath.Join(dir, "b.yaml"), manifest("b", "i:1"))
	after := r.has(0, "a-node i:1", "b-node i:1")
	if after.Pods[0].Pod != before {
		t.Error("a file that did not change was decoded again")
	}
	if len(after.Causes) != 1 || after.Causes[filepath.Join(dir, "b.yaml")] == nil {
		t.Errorf("causes %v, want one, of the changed file", after.Causes)
	}
}

func TestAnEmptyDirectoryIsAReading(t *testing.T) {
	if got := start(t, t.TempDir()).has(0); got.Failed || got.ReadAt.IsZero() {
		t.Errorf("first reading of an empty directory: %+v", got)
	}
}

func TestSingleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	r := start(t, path)
	r.has(0)
	replace(t, path, manifest("a", "i:1"))
	r.has(0, "a-node i:1")
	replace(t, path, manifest("a", "i:2"))
	r.has(0, "a-node i:2")
	overwrite(t, path, manifest("a", "i:3"))
	r.has(0, "a-node i:3")
	overwrite(t, path, "{")
	r.has(1, "a-node i:3")
	must(t, os.Remove(path))
	r.has(0)
	overwrite(t, path, manifest("a", "i:4"))
	r.has(0, "a-node i:4")
}

func TestSeveralPodsInOneFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	r := start(t, dir)
	replace(t, path, manifest("a", "i:1")+"---\n"+manifest("b", "i:1"))
	r.has(0, "a-node i:1", "b-node i:1")
	replace(t, path, manifest("b", "i:2"))
	r.has(0, "b-node i:2")
	replace(t, path, "apiVersion: v1\nkind: List\nitems: []\n")
	r.has(0)
}

func TestMissingPathIsEmptyAndWatchedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "one", "two", "manifests")
	r := start(t, path)
	if got := r.has(0); got.Failed {
		t.Error("a missing path is a failure")
	}
	must(t, os.MkdirAll(path, 0o700))
	replace(t, filepath.Join(path, "a.yaml"), manifest("a", "i:1"))
	r.has(0, "a-node i:1")

	for i := range 3 { // the directory is removed and recreated, often with the same inode
		must(t, os.RemoveAll(filepath.Dir(path)))
		r.has(0)
		must(t, os.MkdirAll(path, 0o700))
		image := fmt.Sprintf("i:%d", i)
		overwrite(t, filepath.Join(path, "a.yaml"), manifest("a", image))
		r.has(0, "a-node "+image)
		replace(t, filepath.Join(path, "b.yaml"), manifest("b", image))
		r.has(0, "a-node "+image, "b-node "+image)
	}
}

func TestDirectoryIsReplacedByRename(t *testing.T) {
	root := t.TempDir()
	path, next := filepath.Join(root, "manifests"), filepath.Join(root, "next")
	must(t, os.Mkdir(path, 0o700))
	replace(t, filepath.Join(path, "a.yaml"), manifest("a", "i:1"))
	r := start(t, path)
	r.has(0, "a-node i:1")
	must(t, os.Mkdir(next, 0o700))
	replace(t, filepath.Join(next, "b.yaml"), manifest("b", "i:1"))
	must(t, os.Rename(path, filepath.Join(root, "old")))
	must(t, os.Rename(next, path))
	r.has(0, "b-node i:1")
	replace(t, filepath.Join(path, "b.yaml"), manifest("b", "i:2"))
	r.has(0, "b-node i:2")
}

// swap replaces files as the kubelet does with a mounted config map: a new hidden directory, and one replaced link.
func swap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	hidden := filepath.Join(dir, "..v"+version)
	must(t, os.Mkdir(hidden, 0o700))
	for name, content := range files {
		overwrite(t, filepath.Join(hidden, name), content)
	}
	must(t, os.Symlink(filepath.Base(hidden), filepath.Join(dir, "..data_tmp")))
	must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
}

func TestConfigMapSwaps(t *testing.T) {
	dir := t.TempDir()
	swap(t, dir, "1", map[string]string{"a.yaml": manifest("a", "i:1"), "b.yaml": manifest("b", "i:1")})
	r := start(t, dir)
	r.has(0, "a-node i:1", "b-node i:1")
	for v := 2; v < 6; v++ {
		image := fmt.Sprintf("i:%d", v)
		swap(t, dir, fmt.Sprint(v), map[string]string{"a.yaml": manifest("a", image), "b.yaml": manifest("b", "i:1")})
		must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", v-1))))
		r.has(0, "a-node "+image, "b-node i:1")
	}
}

func TestConfigMapSwapOfASingleFile(t *testing.T) {
	dir := t.TempDir()
	swap(t, dir, "1", map[string]string{"a.yaml": manifest("a", "i:1")})
	r := start(t, filepath.Join(dir, "a.yaml"))
	r.has(0, "a-node i:1")
	swap(t, dir, "2", map[string]string{"a.yaml": manifest("a", "i:2")})
	r.has(0, "a-node i:2")
	swap(t, dir, "3", map[string]string{"a.yaml": manifest("a", "i:3")})
	r.has(0, "a-node i:3")
}

func TestLinksToElsewhere(t *testing.T) {
	root := t.TempDir()
	dir, other := filepath.Join(root, "manifests"), filepath.Join(root, "other")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Mkdir(other, 0o700))
	target := filepath.Join(other, "target.yaml")
	overwrite(t, target, manifest("a", "i:1"))
	r := start(t, dir)
	link := filepath.Join(dir, "a.yaml")
	must(t, os.Symlink(target, link))
	r.has(0, "a-node i:1")
	replace(t, target, manifest("a", "i:2"))
	r.has(0, "a-node i:2")
	must(t, os.Remove(target))
	if got := r.has(1); !strings.Contains(got.Errors[0].Message, "link to a file that does not exist") {
		t.Errorf("error %q, want text with %q", got.Errors[0].Message, "link to a file that does not exist")
	}
	overwrite(t, filepath.Join(other, "target2.yaml"), manifest("a", "i:3"))
	must(t, os.Remove(link))
	must(t, os.Symlink(filepath.Join(other, "target2.yaml"), link))
	r.has(0, "a-node i:3")
}

func TestPathIsALinkThatIsSwapped(t *testing.T) {
	root := t.TempDir()
	for _, v := range []string{"1", "2"} {
		must(t, os.Mkdir(filepath.Join(root, "v"+v), 0o700))
		overwrite(t, filepath.Join(root, "v"+v, "a.yaml"), manifest("a", "i:"+v))
	}
	path := filepath.Join(root, "current")
	must(t, os.Symlink("v1", path))
	r := start(t, path)
	r.has(0, "a-node i:1")
	must(t, os.Symlink("v2", path+".new"))
	must(t, os.Rename(path+".new", path))
	r.has(0, "a-node i:2")
	replace(t, filepath.Join(path, "a.yaml"), manifest("a", "i:3"))
	r.has(0, "a-node i:3")
}

func TestFullReadSeesWhatInotifyDoesNot(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	overwrite(t, path, manifest("a", "i:1"))
	fake := clocktesting.NewFakeClock(time.Now())
	deaf := func() (*fsnotify.Watcher, error) {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, err
		}
		w.Events = make(chan fsnotify.Event)
		return w, nil
	}
	r := start(t, dir, func(s *Source) { s.cfg.Clock, s.newWatcher, s.cfg.Period = fake, deaf, 20*time.Second })
	before := r.has(0, "a-node i:1")
	info, err := os.Stat(path)
	must(t, err)
	overwrite(t, path, manifest("a", "i:2"))
	must(t, os.Chtimes(path, time.Time{}, info.ModTime()))
	fake.Step(20 * time.Second)
	after := r.has(0, "a-node i:2")
	if got := after.ReadAt.Sub(before.ReadAt); got != 20*time.Second {
		t.Errorf("the full reads are %v apart, want %v", got, 20*time.Second)
	}
}

func TestWithoutInotifyThePathIsPolled(t *testing.T) {
	dir := t.TempDir()
	fake := clocktesting.NewFakeClock(time.Now())
	var mu sync.Mutex
	broken := true
	r := start(t, dir, func(s *Source) {
		s.cfg.Clock, s.cfg.Period = fake, 20*time.Second
		s.newWatcher = func() (*fsnotify.Watcher, error) {
			mu.Lock()
			defer mu.Unlock()
			if broken {
				return nil, unix.EMFILE
			}
			return fsnotify.NewWatcher()
		}
	})
	if got := r.has(0); got.Mode != "polling" {
		t.Errorf("mode %q, want %q", got.Mode, "polling")
	}
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	fake.Step(pollInterval)
	r.has(0, "a-node i:1")
	mu.Lock()
	broken = false
	mu.Unlock()
	fake.Step(20 * time.Second)
	r.until("inotify", func(got source.Reading) bool { return got.Mode == "inotify" })
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:2"))
	r.has(0, "a-node i:2")
}

func TestManyChangesAtOnce(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	const n = 300
	for i := range n {
		replace(t, filepath.Join(dir, fmt.Sprintf("%03d.yaml", i)), manifest(fmt.Sprintf("p%d", i), "i:1"))
	}
	r.until("all pods", func(got source.Reading) bool { return len(got.Pods) == n && len(got.Errors) == 0 })
	for i := range n {
		must(t, os.Remove(filepath.Join(dir, fmt.Sprintf("%03d.yaml", i))))
	}
	r.has(0)
}

// A burst that overflows the kernel's event queue loses no change.
func TestOverflowIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	overflow := make(chan error, 1)
	r := start(t, dir, func(s *Source) {
		s.newWatcher = func() (*fsnotify.Watcher, error) {
			w, err := fsnotify.NewWatcher()
			if err != nil {
				return nil, err
			}
			w.Events, w.Errors = make(chan fsnotify.Event), overflow
			return w, nil
		}
	})
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	overflow <- fsnotify.ErrEventOverflow
	r.has(0, "a-node i:1")
}
