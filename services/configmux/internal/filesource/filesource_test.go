package filesource

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen. It is much longer than anything takes.
const patience = 20 * time.Second

// recorder is a sink that keeps what it was given.
type recorder struct {
	mu       sync.Mutex
	readings []source.Reading
	news     chan struct{}
}

func (r *recorder) Set(name string, reading source.Reading) {
	if name != Name {
		panic("reading of another source: " + name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readings = append(r.readings, reading)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *recorder) all() []source.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.readings)
}

// rig is a running file source.
type rig struct {
	t *testing.T
	*recorder
	path string
	stop func()
}

type option func(*Source)

// start runs a file source on a path until the test ends.
func start(t *testing.T, path string, options ...option) *rig {
	t.Helper()
	s := New(Config{
		Path: path, Node: "node", Period: time.Hour, Clock: clock.RealClock{},
		Checkpoint: filepath.Join(t.TempDir(), "checkpoint.json"),
		Tracer:     noop.NewTracerProvider().Tracer(""), Logger: slog.New(slog.DiscardHandler),
	})
	for _, o := range options {
		o(s)
	}
	r := &rig{t: t, path: path, recorder: &recorder{news: make(chan struct{}, 1)}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r.recorder) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	r.until("the first reading", func(source.Reading) bool { return true })
	return r
}

// until waits for a reading that fulfils the condition, and returns it.
func (r *rig) until(what string, condition func(source.Reading) bool) source.Reading {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		all := r.all()
		if len(all) > 0 && condition(all[len(all)-1]) {
			return all[len(all)-1]
		}
		select {
		case <-r.news:
		case <-deadline:
			r.t.Fatalf("waited for %s; the last of %d readings has pods %v and errors %v", what, len(all), summary(last(all)), last(all).Errors)
		}
	}
}

// has waits until the pods are exactly these, as "name image", and there are that many errors.
func (r *rig) has(errors int, want ...string) source.Reading {
	r.t.Helper()
	return r.until(fmt.Sprintf("pods %v and %d errors", want, errors), func(got source.Reading) bool {
		return !got.Failed && len(got.Errors) == errors && slices.Equal(summary(got), want)
	})
}

func last(all []source.Reading) source.Reading {
	if len(all) == 0 {
		return source.Reading{}
	}
	return all[len(all)-1]
}

func summary(reading source.Reading) []string {
	var out []string
	for _, p := range reading.Pods {
		out = append(out, p.Name+" "+p.Spec.Containers[0].Image)
	}
	slices.Sort(out)
	return out
}

func manifest(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: %s}]}\n", name, image)
}

// replace writes a file whole, the way that careful programs do.
func replace(t *testing.T, path, content string) {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	overwrite(t, hidden, content)
	must(t, os.Rename(hidden, path))
}

// overwrite writes a file in place.
func overwrite(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	overwrite(t, filepath.Join(dir, ".hidden.yaml"), manifest("hidden", "i:1"))
	r := start(t, dir)
	first := r.has(0, "a-node i:1")
	if first.Mode != "inotify" || first.ReadAt.IsZero() {
		t.Errorf("mode %q, read at %v", first.Mode, first.ReadAt)
	}

	replace(t, filepath.Join(dir, "b.json"), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}`)
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

	for i := range 3 { // the directory goes and comes back, often with the same inode
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

// swap does what the kubelet does to a mounted config map: a new hidden directory, and one link that is replaced.
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
	if got := r.has(1); !strings.Contains(got.Errors[0].Message, "link to something that does not exist") {
		t.Errorf("error %q", got.Errors[0].Message)
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

func TestABrokenFileKeepsItsLastGoodPods(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	good := manifest("a", "i:1") + "---\n" + manifest("b", "i:1")
	replace(t, path, good)
	replace(t, filepath.Join(dir, "good.yaml"), manifest("good", "i:1"))
	r := start(t, dir)
	r.has(0, "a-node i:1", "b-node i:1", "good-node i:1")

	for what, content := range map[string]string{"cut off": good[:len(good)-5], "emptied": "", "rubbish": "\x00\xff{"} {
		t.Run(what, func(t *testing.T) {
			r.t = t
			replace(t, path, content)
			got := r.has(1, "a-node i:1", "b-node i:1", "good-node i:1")
			if e := got.Errors[0]; e.Path != path || !strings.Contains(e.Message, "last good version") {
				t.Errorf("error %+v", e)
			}
			replace(t, path, good)
			r.has(0, "a-node i:1", "b-node i:1", "good-node i:1")
		})
	}
	r.t = t

	// Of two pods one is broken: only that one is kept back.
	replace(t, path, manifest("a", "i:2")+"---\n"+manifest("b", "''"))
	got := r.has(1, "a-node i:2", "b-node i:1", "good-node i:1")
	if e := got.Errors[0]; e.Pod != "default/b-node" || e.Field != "spec.containers[0].image" ||
		!strings.Contains(e.Message, "last good version of the pod is kept") {
		t.Errorf("error %+v", e)
	}
	// A broken pod that was never good is left out.
	replace(t, path, manifest("a", "i:3")+"---\n"+manifest("c", "''"))
	got = r.has(1, "a-node i:3", "good-node i:1")
	if !strings.Contains(got.Errors[0].Message, "the pod is left out") {
		t.Errorf("error %+v", got.Errors[0])
	}
	must(t, os.Remove(path))
	r.has(0, "good-node i:1")
}

// A manifest that is written in place, in pieces of which each but the last is broken or, worse, a good but smaller
// manifest, must come out as what is written in the end, without having been anything else.
func TestHalfWrittenFilesAreNotTaken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	whole := manifest("a", "i:1") + "---\n" + manifest("b", "i:1")
	overwrite(t, path, whole)
	r := start(t, dir)
	r.has(0, "a-node i:1", "b-node i:1")
	seen := len(r.all())

	next := manifest("a", "i:2") + "---\n" + manifest("b", "i:2")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	must(t, err)
	for _, piece := range []string{next[:10], next[10 : len(next)/2+5], next[len(next)/2+5:]} {
		_, err := file.WriteString(piece)
		must(t, err)
	}
	must(t, file.Close())
	r.has(0, "a-node i:2", "b-node i:2")
	for _, reading := range r.all()[seen:] {
		if !slices.Equal(summary(reading), []string{"a-node i:2", "b-node i:2"}) || len(reading.Errors) > 0 {
			t.Errorf("in between, the file counted as %v with errors %v", summary(reading), reading.Errors)
		}
	}
}

// Some editors move the old file aside and write a new one: in between there is none, and beside it there is another
// one with the same pod.
func TestAnEditorsBackupTakesNoPodAway(t *testing.T) {
	for _, mode := range []string{"directory", "file"} {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.yaml")
			overwrite(t, path, manifest("a", "i:0"))
			target := dir
			if mode == "file" {
				target = path
			}
			r := start(t, target)
			r.has(0, "a-node i:0")
			seen := len(r.all())
			for i := 1; i < 10; i++ {
				must(t, os.Rename(path, path+"~"))
				overwrite(t, path, manifest("a", fmt.Sprintf("i:%d", i)))
				must(t, os.Remove(path+"~"))
				r.has(0, fmt.Sprintf("a-node i:%d", i))
			}
			uids := map[types.UID]bool{}
			for _, reading := range r.all()[seen:] {
				if len(reading.Pods) != 1 {
					t.Fatalf("in between there were %d pods", len(reading.Pods))
				}
				uids[reading.Pods[0].UID] = true
			}
			if len(uids) > 10 {
				t.Errorf("%d versions of the pod in 10 versions of the file: a backup has counted", len(uids))
			}
		})
	}
}

// The first set after a restart has the last good pods, also when the path could not be read at first.
func TestTheFirstSetIsWholeWhenThePathComesLate(t *testing.T) {
	root, kept := t.TempDir(), filepath.Join(t.TempDir(), "checkpoint.json")
	dir := filepath.Join(root, "manifests")
	must(t, os.Mkdir(dir, 0o700))
	overwrite(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	before := start(t, dir, keeping(kept, "node"))
	before.has(0, "a-node i:1")
	before.stop()

	must(t, os.Rename(dir, dir+".away"))
	must(t, os.Symlink("manifests", dir)) // a link to itself
	overwrite(t, filepath.Join(dir+".away", "a.yaml"), "{")
	r := start(t, dir, keeping(kept, "node"))
	r.until("a failure", func(got source.Reading) bool { return got.Failed })
	must(t, os.Rename(dir+".away", filepath.Join(root, "real")))
	must(t, os.Symlink("real", filepath.Join(root, "next")))
	must(t, os.Rename(filepath.Join(root, "next"), dir))
	got := r.has(1, "a-node i:1")
	if got.ReadAt.IsZero() {
		t.Error("it has been read in full, and does not say when")
	}
	for _, reading := range r.all() {
		if !reading.Failed && len(reading.Pods) != 1 {
			t.Errorf("a set without the pod: %+v", reading)
		}
	}
}

func TestDuplicatesAreLeftOutAndReported(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	replace(t, filepath.Join(dir, "b.yaml"), manifest("a", "i:2")+"---\n"+manifest("other", "i:1"))
	r.has(0, "a-node i:2", "other-node i:1")
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	got := r.has(1, "a-node i:1", "other-node i:1")
	e := got.Errors[0]
	if e.Path != filepath.Join(dir, "b.yaml") || e.Pod != "default/a-node" || e.Field != "metadata.name" ||
		!strings.Contains(e.Message, filepath.Join(dir, "a.yaml")) {
		t.Errorf("error %+v, want one that names both files", e)
	}
	must(t, os.Remove(filepath.Join(dir, "a.yaml")))
	r.has(0, "a-node i:2", "other-node i:1")
}

func TestWhatIsNoManifestFileIsReportedAndSkipped(t *testing.T) {
	dir := t.TempDir()
	replace(t, filepath.Join(dir, "good.yaml"), manifest("good", "i:1"))
	must(t, os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "link")))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	big, err := os.Create(filepath.Join(dir, "zbig.yaml"))
	must(t, err)
	must(t, big.Truncate(maxManifest+1))
	must(t, big.Close())
	r := start(t, dir)
	got := r.has(5, "good-node i:1")
	for i, want := range []string{"a directory", "a named pipe", "does not exist", "too many levels", "limit of 10 MiB"} {
		if !strings.Contains(got.Errors[i].Message, want) {
			t.Errorf("error %d is %q, want %q in it", i, got.Errors[i].Message, want)
		}
	}
	// One that takes a manifest's place does not hang anything either.
	must(t, os.Remove(filepath.Join(dir, "good.yaml")))
	must(t, unix.Mkfifo(filepath.Join(dir, "good.yaml"), 0o600))
	r.has(6)
}

func TestUnreadableFileKeepsItsPods(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, manifest("a", "i:1"))
	r := start(t, dir)
	r.has(0, "a-node i:1")
	must(t, os.Chmod(path, 0))
	if got := r.has(1, "a-node i:1"); !strings.Contains(got.Errors[0].Message, "permission denied") {
		t.Errorf("error %q", got.Errors[0].Message)
	}
}

// A path whose state cannot be known says nothing of its pods.
func TestAPathThatCannotBeReadIsAFailureAndNotEmpty(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "manifests")
	must(t, os.Symlink("manifests", path)) // a link to itself
	r := start(t, path)
	got := r.until("a failure", func(got source.Reading) bool { return got.Failed })
	if len(got.Errors) != 1 || got.Errors[0].Path != path || !got.ReadAt.IsZero() {
		t.Errorf("reading %+v", got)
	}
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o700))
	replace(t, filepath.Join(path, "a.yaml"), manifest("a", "i:1"))
	r.has(0, "a-node i:1")
	must(t, os.RemoveAll(path))
	must(t, os.Symlink("manifests", path))
	r.until("a failure", func(got source.Reading) bool { return got.Failed })
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
		t.Errorf("the full reads are %v apart", got)
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
		t.Errorf("mode %q", got.Mode)
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

func TestAnErrorThatStaysIsSeenAgain(t *testing.T) {
	dir := t.TempDir()
	overwrite(t, filepath.Join(dir, "a.yaml"), "{")
	fake := clocktesting.NewFakeClock(time.Now())
	r := start(t, dir, func(s *Source) { s.cfg.Clock, s.cfg.Period = fake, 20*time.Second })
	first := r.has(1).Errors[0]
	fake.Step(20 * time.Second)
	r.until("the error to be seen later", func(got source.Reading) bool {
		return len(got.Errors) == 1 && got.Errors[0].SeenAt.Sub(first.SeenAt) == 20*time.Second
	})
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

// A burst that overflows the kernel's queue of events loses none of the changes.
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

// keeping makes a source keep its checkpoint in a file that outlives it.
func keeping(path, node string) option {
	return func(s *Source) { s.cfg.Checkpoint, s.cfg.Node = path, node }
}

// A process that is killed and started again while a manifest is broken must not take that manifest's pods away.
func TestABrokenFileKeepsItsPodsThroughARestart(t *testing.T) {
	dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "checkpoint.json")
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, manifest("a", "i:1")+"---\n"+manifest("b", "i:1"))
	replace(t, filepath.Join(dir, "c.yaml"), manifest("c", "i:1"))
	first := start(t, dir, keeping(kept, "node"))
	uid := first.has(0, "a-node i:1", "b-node i:1", "c-node i:1").Pods[0].UID
	first.stop()

	overwrite(t, path, "{")                                          // broken while nobody looked
	overwrite(t, filepath.Join(dir, "c.yaml"), manifest("c", "i:2")) // good, and changed
	second := start(t, dir, keeping(kept, "node"))
	got := second.has(1, "a-node i:1", "b-node i:1", "c-node i:2")
	if got.Pods[0].UID != uid {
		t.Errorf("UID %s, want %s as before the restart", got.Pods[0].UID, uid)
	}
	second.stop()

	third := start(t, dir, keeping(kept, "node"))
	third.has(1, "a-node i:1", "b-node i:1", "c-node i:2")
	must(t, os.Remove(path))
	third.has(0, "c-node i:2")
	third.stop()

	// A file that is gone has no pods, whatever the checkpoint says, and a broken one of that name is another one.
	overwrite(t, path, "{")
	fourth := start(t, dir, keeping(kept, "node"))
	fourth.has(1, "c-node i:2")
	fourth.stop()

	// What was kept for another node is of no use.
	overwrite(t, filepath.Join(dir, "c.yaml"), "{")
	start(t, dir, keeping(kept, "other")).has(2)
}

func TestACheckpointThatCannotBeUsedIsDoneWithout(t *testing.T) {
	dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "checkpoint.json")
	replace(t, filepath.Join(dir, "a.yaml"), manifest("a", "i:1"))
	for _, content := range []string{"", "{", `{"node":"node","manifests":{"x":["AAAA"]}}`} {
		overwrite(t, kept, content)
		r := start(t, dir, keeping(kept, "node"))
		r.has(0, "a-node i:1")
		r.stop()
	}
	r := start(t, dir, keeping(filepath.Join(kept, "not", "there"), "node"))
	r.has(0, "a-node i:1")
}
