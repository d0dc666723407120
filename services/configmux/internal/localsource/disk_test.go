package localsource

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func TestFilesWithoutAPodAreSetAside(t *testing.T) {
	r := newRig(t)
	r.start()
	r.apply(pod("good", "i:1"))
	r.apply(pod("bad", "i:1"))
	r.stop()
	bad := r.pathOf(types.NamespacedName{Namespace: "default", Name: "bad"})
	good, err := os.ReadFile(r.pathOf(types.NamespacedName{Namespace: "default", Name: "good"}))
	must(t, err)
	must(t, os.WriteFile(bad, []byte(`{"half`), 0o600))
	must(t, os.WriteFile(filepath.Join(r.dir, "copy.json"), good, 0o600))
	must(t, os.WriteFile(filepath.Join(r.dir, "notes.txt"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(r.dir, "dir.json"), 0o700))
	reading := r.start()
	expect(t, reading, map[string]string{"default/good-node": "i:1"})
	if got := len(reading.Errors); got != 4 {
		t.Errorf("%d errors, want 4: %v", got, reading.Errors)
	}
	if _, err := os.Stat(bad + ".broken"); err != nil {
		t.Errorf("the file was not set aside: %v", err)
	}
	// The error of a file that was set aside remains until the pod is applied again or deleted.
	reading = r.restart()
	if got := len(reading.Errors); got != 4 {
		t.Errorf("after a restart there are %d errors, want 4: %v", got, reading.Errors)
	}
	r.apply(pod("bad", "i:2"))
	reading = r.next()
	expect(t, reading, map[string]string{"default/good-node": "i:1", "default/bad-node": "i:2"})
	if got := len(reading.Errors); got != 3 {
		t.Errorf("after the pod was applied anew there are %d errors, want 3: %v", got, reading.Errors)
	}
	r.stop()
	must(t, os.WriteFile(bad, nil, 0o600))
	r.start()
	must(t, r.Delete(t.Context(), types.NamespacedName{Name: "bad-node"}))
	reading = r.restart()
	if got := len(reading.Errors); got != 3 || len(reading.Pods) != 1 {
		t.Errorf("after the pod was deleted there are %d errors, want 3, and %d pods, want 1", got, len(reading.Pods))
	}
}

// TestAChangedFileDoesNotPassForWhatWasApplied flips one bit of an image and of a value of a config map.
func TestAChangedFileDoesNotPassForWhatWasApplied(t *testing.T) {
	r := newRig(t)
	r.start()
	r.apply(pod("a", "i:1"))
	r.apply(pod("b", "i:1"))
	r.applyObject(configMap("c", "i:1"))
	r.stop()
	settings := r.objectPath(apiobject.Key{Kind: apiobject.ConfigMap, Namespace: "default", Name: "c"})
	for _, path := range []string{r.file("a"), settings} {
		content, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, bytes.Replace(content, []byte(`"i:1"`), []byte(`"i:3"`), 1), 0o600))
	}
	reading := r.start()
	expect(t, reading, map[string]string{"default/b-node": "i:1"})
	if got := objectsOf(reading); len(got) > 0 || len(reading.Errors) != 2 {
		t.Errorf("objects %v, errors %v; want no object, and two errors", got, reading.Errors)
	}
	for _, e := range reading.Errors {
		if !strings.HasSuffix(e.Path, ".broken") || !strings.Contains(e.Message, "its checksum is wrong") {
			t.Errorf("error %+v, want one of a file that was renamed because its checksum is wrong", e)
		}
	}
}

// TestAFileWithoutAChecksumIsAccepted starts with files as v0.1.0 has written them.
func TestAFileWithoutAChecksumIsAccepted(t *testing.T) {
	r := newRig(t)
	must(t, os.Mkdir(r.dir, 0o700))
	must(t, os.WriteFile(r.file("a"), []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"default",`+
		`"annotations":{"writtenBy":"me"}},"spec":{"containers":[{"name":"c","image":"i:1"}]},"status":{}}`), 0o600))
	key := apiobject.Key{Kind: apiobject.ConfigMap, Namespace: "default", Name: "c"}
	r.start()
	r.stop()
	must(t, os.WriteFile(r.objectPath(key), []byte(`{"kind":"ConfigMap","namespace":"default","name":"c",`+
		`"createdAt":"2026-01-01T00:00:00Z","configMap":{"metadata":{"name":"c","namespace":"default"},`+
		`"data":{"key":"1","writtenBy":"me"}}}`), 0o600))
	reading := r.start()
	expect(t, reading, map[string]string{"default/a-node": "i:1"})
	if got := objectsOf(reading); !slices.Equal(got, []string{"configmap default/c=1"}) || len(reading.Errors) > 0 {
		t.Errorf("objects %v, errors %v; want the config map", got, reading.Errors)
	}
}

// A pod that is invalid may become valid with another configuration, so its file is kept.
func TestAPodThatIsNotValidAnyMoreIsLeftOut(t *testing.T) {
	r := newRig(t)
	r.start()
	r.apply(pod("a", "i:1"))
	r.apply(pod("b", "i:1"))
	r.stop()
	r.node = "no_name"
	reading := r.start()
	if len(reading.Pods) != 0 || len(reading.Errors) != 2 || reading.Errors[0].Field != "metadata.name" {
		t.Errorf("pods on a node without a valid name: %v, errors %v", images(reading), reading.Errors)
	}
	must(t, r.Delete(t.Context(), types.NamespacedName{Name: "b"}))
	r.stop()
	r.node = "node"
	reading = r.start()
	expect(t, reading, map[string]string{"default/a-node": "i:1"})
	if len(reading.Errors) > 0 {
		t.Errorf("errors %v, want none", reading.Errors)
	}
}

// A change writes the new file under another name, bit by bit, and renames it into place. Whatever part of that a
// killed process has done, the next one has the old version or the new one, without an error.
func TestEveryPrefixOfTheWritesIsAState(t *testing.T) {
	r := newRig(t)
	r.start()
	r.apply(pod("a", "i:1"))
	path := r.pathOf(types.NamespacedName{Namespace: "default", Name: "a"})
	before, err := os.ReadFile(path)
	must(t, err)
	r.apply(pod("a", "i:2"))
	after, err := os.ReadFile(path)
	must(t, err)
	r.stop()
	temporary := filepath.Join(r.dir, "."+filepath.Base(path)+".tmp-1")
	check := func(what, image string) {
		t.Helper()
		reading := r.start()
		r.stop()
		expect(t, reading, map[string]string{"default/a-node": image})
		if len(reading.Errors) > 0 {
			t.Errorf("%s: errors %v, want none", what, reading.Errors)
		}
		if files, err := os.ReadDir(r.dir); err != nil || len(files) != 1 {
			t.Errorf("%s: %d files, %v; want one", what, len(files), err)
		}
	}
	for cut := range len(after) + 1 {
		if cut%50 != 0 && cut != len(after) {
			continue
		}
		must(t, os.WriteFile(path, before, 0o600))
		must(t, os.WriteFile(temporary, after[:cut], 0o600))
		check(fmt.Sprintf("%d bytes written", cut), "i:1")
	}
	must(t, os.WriteFile(temporary, after, 0o600))
	must(t, os.Rename(temporary, path))
	check("renamed", "i:2")
}

// await waits until the source waits for its next retry.
func (r *rig) await() {
	r.t.Helper()
	eventually.That(r.t, "something is to be tried again", r.clock.HasWaiters)
}

func TestADirectoryThatCannotBeReadIsTriedAgain(t *testing.T) {
	r := newRig(t)
	must(t, os.WriteFile(r.dir, nil, 0o600))
	if reading := r.start(); !reading.Failed || len(reading.Errors) != 1 ||
		!strings.Contains(reading.Errors[0].Message, r.dir) {
		t.Errorf("a file in the place of the directory: %+v, want a failure that names it", reading)
	}
	must(t, os.Remove(r.dir))
	r.await()
	r.clock.Step(retryInterval)
	if reading := r.next(); reading.Failed {
		t.Errorf("the directory can be made now: %+v", reading)
	}
	r.apply(pod("a", "i"))
}

func TestNothingIsAppliedThatCannotBeKept(t *testing.T) {
	r := newRig(t)
	must(t, os.WriteFile(r.dir, nil, 0o600))
	r.start()
	if _, err := r.Apply(t.Context(), pod("a", "i"), false); err == nil || !strings.Contains(err.Error(), r.dir) {
		t.Errorf("a pod that cannot be kept: %v, want an error that names the directory", err)
	}
	// A call itself detects that the directory is usable again.
	must(t, os.Remove(r.dir))
	if op := r.apply(pod("a", "i")); op != podset.Add {
		t.Errorf("a new pod: %v, want Add", op)
	}
}

// A change whose last step fails is not reported as done. The memory has what the next process would find, so that no
// change appears weeks later with the next start.
func TestAChangeThatFailsHalfWayIsWhatTheDiskSays(t *testing.T) {
	r := newRig(t)
	must(t, os.MkdirAll(filepath.Join(r.file("a")+".broken", "not empty"), 0o700))
	r.start()
	if _, err := r.Apply(
		t.Context(),
		pod("a", "i:1"),
		false,
	); err == nil ||
		!strings.Contains(err.Error(), "saving the pod") {
		t.Fatalf("applying a pod in whose way something is: %v, want an error", err)
	}
	reading := r.next()
	expect(t, reading, map[string]string{"default/a-node": "i:1"})
	if reading.Causes[r.file("a")] == nil {
		t.Error("the change has no trace")
	}
	if op := r.apply(pod("a", "i:1")); op != podset.None {
		t.Errorf("the second try: %v, want None", op)
	}
	reading = r.restart()
	expect(t, reading, map[string]string{"default/a-node": "i:1"})
	if len(reading.Errors) != 1 || !strings.Contains(reading.Errors[0].Message, "cannot be removed") {
		t.Errorf("errors %v, want that the rest cannot be removed", reading.Errors)
	}
}

// A temporary disk error removes no pod: while one file cannot be read, the set of pods is unknown.
func TestAFileThatCannotBeReadIsNotSetAside(t *testing.T) {
	require.Root(t, "putting a file that cannot be read in the place of another")
	r := newRig(t)
	r.start()
	r.apply(pod("a", "i:1"))
	r.apply(pod("b", "i:1"))
	r.stop()
	// No process has memory at the address 0.
	must(t, unix.Mount("/proc/self/mem", r.file("a"), "", unix.MS_BIND, ""))
	unmount := sync.OnceFunc(func() { must(t, unix.Unmount(r.file("a"), 0)) })
	t.Cleanup(unmount)
	reading := r.start()
	if !reading.Failed || len(reading.Errors) != 1 ||
		!strings.Contains(reading.Errors[0].Message, "cannot read an applied pod: read "+r.file("a")) {
		t.Fatalf("with a file that cannot be read: %+v, want a failure that names it", reading)
	}
	if _, err := r.Apply(t.Context(), pod("c", "i:1"), false); err == nil {
		t.Error("a pod is applied though it is not known which there are")
	}
	r.next()
	unmount()
	r.await()
	r.clock.Step(retryInterval)
	expect(t, r.next(), map[string]string{"default/a-node": "i:1", "default/b-node": "i:1"})
}

func TestADeletionTakesAllFilesOfAPodThatIsLeftOut(t *testing.T) {
	r := newRig(t)
	must(t, os.Mkdir(r.dir, 0o700))
	must(
		t,
		os.WriteFile(
			r.file("a"),
			[]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"default","name":"a"}}`),
			0o600,
		),
	)
	must(t, os.WriteFile(r.file("a")+".broken", nil, 0o600))
	if reading := r.start(); len(reading.Pods) != 0 || len(reading.Errors) != 2 {
		t.Fatalf("pods %v, errors %v; want both files told of", images(reading), reading.Errors)
	}
	must(t, r.Delete(t.Context(), types.NamespacedName{Name: "a"}))
	if reading := r.next(); len(reading.Errors) != 0 {
		t.Errorf("errors %v, want none", reading.Errors)
	}
	if files, err := os.ReadDir(r.dir); err != nil || len(files) != 0 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
}
