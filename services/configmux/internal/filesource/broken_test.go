package filesource

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

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
				t.Errorf("error %+v, want Path %v and Message with %q", e, path, "last good version")
			}
			replace(t, path, good)
			r.has(0, "a-node i:1", "b-node i:1", "good-node i:1")
		})
	}
	r.t = t

	// One of two pods is broken: only that one is not published.
	replace(t, path, manifest("a", "i:2")+"---\n"+manifest("b", "''"))
	got := r.has(1, "a-node i:2", "b-node i:1", "good-node i:1")
	if e := got.Errors[0]; e.Pod != "default/b-node" || e.Field != "spec.containers[0].image" ||
		!strings.Contains(e.Message, "last good version of the pod is kept") {
		t.Errorf("error %+v, want Pod %q, Field %q and Message with %q",
			e, "default/b-node", "spec.containers[0].image", "last good version of the pod is kept")
	}
	// A broken pod without a valid version is left out.
	replace(t, path, manifest("a", "i:3")+"---\n"+manifest("c", "''"))
	got = r.has(1, "a-node i:3", "good-node i:1")
	if !strings.Contains(got.Errors[0].Message, "the pod is left out") {
		t.Errorf("error %+v, want Message with %q", got.Errors[0], "the pod is left out")
	}
	must(t, os.Remove(path))
	r.has(0, "good-node i:1")
}

// A manifest is written in place, in pieces. Each except the last is broken or, worse, a valid but smaller manifest.
// Only the final content may be published.
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

// Some editors rename the old file and write a new one: in between there is none, and another file with the same pod
// exists beside it.
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
					t.Fatalf("in between there were %d pods, want 1", len(reading.Pods))
				}
				uids[reading.Pods[0].UID] = true
			}
			if len(uids) > 10 {
				t.Errorf("%d versions of the pod in 10 versions of the file: a backup has counted", len(uids))
			}
		})
	}
}

// The first set after a restart includes the last valid pods, even if the path could not be read at first.
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
	// A special file in the place of a manifest does not make the source hang either.
	must(t, os.Remove(filepath.Join(dir, "good.yaml")))
	must(t, unix.Mkfifo(filepath.Join(dir, "good.yaml"), 0o600))
	r.has(6)
}

func TestUnreadableFileKeepsItsPods(t *testing.T) {
	if os.Geteuid() == 0 { // root can read every file
		asNobody(t)
		return
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, manifest("a", "i:1"))
	r := start(t, dir)
	r.has(0, "a-node i:1")
	must(t, os.Chmod(path, 0))
	if got := r.has(1, "a-node i:1"); !strings.Contains(got.Errors[0].Message, "permission denied") {
		t.Errorf("error %q, want text with %q", got.Errors[0].Message, "permission denied")
	}
}

// asNobody runs the calling test again as a user without privileges, from a copy of this binary that the user can
// reach.
func asNobody(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	binary, err := os.ReadFile(self)
	must(t, err)
	dir, err := os.MkdirTemp("", "filesource-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "filesource.test")
	must(t, os.WriteFile(path, binary, 0o755))
	const nobody = 65534
	cmd := exec.Command(path, "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Dir, cmd.Env = dir, []string{"TMPDIR=/tmp"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// An unreadable path says nothing about its pods.
func TestAPathThatCannotBeReadIsAFailureAndNotEmpty(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "manifests")
	must(t, os.Symlink("manifests", path)) // a link to itself
	r := start(t, path)
	got := r.until("a failure", func(got source.Reading) bool { return got.Failed })
	if len(got.Errors) != 1 || got.Errors[0].Path != path || !got.ReadAt.IsZero() {
		t.Errorf("reading %+v, want one error of %s, and no time of reading", got, path)
	}
	must(t, os.Remove(path))
	must(t, os.Mkdir(path, 0o700))
	replace(t, filepath.Join(path, "a.yaml"), manifest("a", "i:1"))
	r.has(0, "a-node i:1")
	must(t, os.RemoveAll(path))
	must(t, os.Symlink("manifests", path))
	r.until("a failure", func(got source.Reading) bool { return got.Failed })
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

// keeping makes a source store its checkpoint in a file that outlives it.
func keeping(path, node string) option {
	return func(s *Source) { s.cfg.Checkpoint, s.cfg.Node = path, node }
}

// A process that is killed and restarted while a manifest is broken must not remove that manifest's pods.
func TestABrokenFileKeepsItsPodsThroughARestart(t *testing.T) {
	dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "checkpoint.json")
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, manifest("a", "i:1")+"---\n"+manifest("b", "i:1"))
	replace(t, filepath.Join(dir, "c.yaml"), manifest("c", "i:1"))
	first := start(t, dir, keeping(kept, "node"))
	uid := first.has(0, "a-node i:1", "b-node i:1", "c-node i:1").Pods[0].UID
	first.stop()

	overwrite(t, path, "{")                                          // broken while the source was not running
	overwrite(t, filepath.Join(dir, "c.yaml"), manifest("c", "i:2")) // valid, and changed
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

	// A removed file has no pods, whatever the checkpoint has, and a later broken file of that name is another one.
	overwrite(t, path, "{")
	fourth := start(t, dir, keeping(kept, "node"))
	fourth.has(1, "c-node i:2")
	fourth.stop()

	// The checkpoint of another node is not used.
	overwrite(t, filepath.Join(dir, "c.yaml"), "{")
	start(t, dir, keeping(kept, "other")).has(2)
}

// TestACheckpointThatCannotBeReadRemovesNoPod starts beside a broken manifest while each read of its last good version
// fails with an I/O error. The source is not ready until the disk is well, and the checkpoint is not replaced.
func TestACheckpointThatCannotBeReadRemovesNoPod(t *testing.T) {
	dir, kept := t.TempDir(), filepath.Join(t.TempDir(), "checkpoint.json")
	path := filepath.Join(dir, "a.yaml")
	replace(t, path, manifest("a", "i:1"))
	first := start(t, dir, keeping(kept, "node"))
	first.has(0, "a-node i:1")
	first.stop()
	overwrite(t, path, "{")
	must(t, os.Rename(kept, kept+".good"))
	must(t, os.Symlink("/proc/self/mem", kept)) // of which no read succeeds

	second := start(t, dir, keeping(kept, "node"), func(s *Source) { s.cfg.Period = 50 * time.Millisecond })
	second.until("the source is not ready", func(got source.Reading) bool {
		return got.Failed && strings.Contains(got.Errors[0].Message, kept)
	})
	must(t, os.Rename(kept+".good", kept))
	second.has(1, "a-node i:1")
	second.stop()

	// A node whose manifests are all good does not need the checkpoint.
	overwrite(t, path, manifest("a", "i:2"))
	must(t, os.Remove(kept))
	must(t, os.Symlink("/proc/self/mem", kept))
	start(t, dir, keeping(kept, "node")).has(0, "a-node i:2")
}

func TestAnUnusableCheckpointIsIgnored(t *testing.T) {
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
