package apisource

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// remember writes a checkpoint as an earlier process would have.
func (r *rig) remember(node string, pods ...*v1.Pod) {
	r.t.Helper()
	held := map[types.UID]*v1.Pod{}
	for _, p := range pods {
		clean(p)
		held[p.UID] = p
	}
	data, err := encode(node, held)
	must(r.t, err)
	must(r.t, os.WriteFile(r.checkpoint, data, checkpointMode))
}

// alone returns a source whose API server is down.
func alone(t *testing.T) *rig {
	t.Helper()
	a := newAPIServer(t)
	client := a.client()
	a.Close()
	return newRig(t, client)
}

func TestPodsAreKeptWhenMoreThanTheirStatusChanges(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	r := start(t, a)
	r.want(podset.None, "a i:1")
	r.kept("a i:1")
	info, err := os.Stat(r.checkpoint)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, want Perm 0o600", info.Mode())
	}
	running := pod("a", "i:1")
	running.Status.Phase = v1.PodRunning
	a.put(running)
	r.want(podset.Update, "a i:1")
	r.timers(2) // the pause after the write, and the wait for the list
	a.put(pod("b", "i:1"))
	r.want(podset.Add, "b i:1")
	if got := r.kept("a i:1"); got[0].Status.Phase != "" {
		t.Errorf("the status %v alone was worth a write", got[0].Status)
	}
	// At most once within a second.
	r.clock.Step(time.Second)
	r.kept("a i:1", "b i:1")
	r.timers(1)
	// A finished pod must not run again.
	ended := pod("a", "i:1")
	ended.Status.Phase = v1.PodFailed
	a.put(ended)
	r.want(podset.Update, "a i:1")
	a.remove("b")
	r.want(podset.Remove, "b i:1")
	r.stop() // and at the end without a delay
	if got := r.kept("a i:1"); got[0].Status.Phase != v1.PodFailed {
		t.Errorf("status %v, want Phase %v", got[0].Status, v1.PodFailed)
	}
	metricstest.Want(t, r.registry, 3, "quartet_configmux_api_checkpoint_writes_total", "outcome", "ok")
}

func TestWithoutTheAPIServerThePodsOfTheCheckpointAreRestored(t *testing.T) {
	r := alone(t)
	ending := pod("b", "i:1")
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0)}
	r.remember("node", pod("a", "i:1"), ending)
	before, err := os.ReadFile(r.checkpoint)
	must(t, err)
	r.run()
	got := r.want(podset.Restore, "a i:1", "b i:1")
	if got.Pods[1].DeletionTimestamp == nil || !got.ReadAt.IsZero() || got.Causes[r.checkpoint] == nil {
		t.Errorf("the pods came as %+v", got)
	}
	if e := r.wrong("connection refused"); !strings.Contains(e.Message, "the pods of the checkpoint run in the meantime") {
		t.Errorf("error %v, want Message with %q", e, "the pods of the checkpoint run in the meantime")
	}
	r.clock.Step(time.Minute)
	for range 3 { // retries continue, and no pod is published twice
		if again := r.until("another failure", func(source.Reading) bool { return true }); !again.Failed {
			t.Errorf("given again: %+v", again)
		}
	}
	r.stop()
	if after, err := os.ReadFile(r.checkpoint); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the checkpoint has changed, %v, want before %v", err, after)
	}
}

func TestPodsAreRestoredWhileNodestatusIsWaitedFor(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:2"))
	r := newRig(t, a.client())
	r.nodes.Delete("node")
	r.remember("node", pod("a", "i:1"), pod("gone", "i:1"))
	r.run()
	r.timers(1)
	r.clock.Step(restoreAfter)
	r.want(podset.Restore, "a i:1", "gone i:1")
	r.nodes.Put("node", nodeSynced())
	r.want(podset.None, "a i:2")
	r.kept("a i:2")
}

func TestAListThatComesAtOnceIsAllThatIsGiven(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:2"))
	r := newRig(t, a.client())
	r.remember("node", pod("a", "i:1"))
	r.run()
	r.want(podset.None, "a i:2")
	r.clock.Step(time.Minute)
	a.put(pod("b", "i:1"))
	r.want(podset.Add, "b i:1")
}

// hang makes a file whose reads hang until the returned function is called, which gives it an empty content.
func (r *rig) hang() (release func()) {
	r.t.Helper()
	must(r.t, unix.Mkfifo(r.checkpoint, checkpointMode))
	release = sync.OnceFunc(func() {
		pipe, err := os.OpenFile(r.checkpoint, os.O_RDWR, 0) // it does not wait for a reader
		must(r.t, err)
		must(r.t, pipe.Close())
	})
	r.t.Cleanup(release)
	return release
}

// TestACheckpointWhoseReadHangsDelaysNoPod: pods come and change, and are written when the read has ended.
func TestACheckpointWhoseReadHangsDelaysNoPod(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	r := newRig(t, a.client())
	release := r.hang()
	r.run()
	r.want(podset.None, "a i:1")
	a.put(pod("b", "i:1"))
	r.want(podset.Add, "b i:1")
	release()
	r.wrong("is corrupt") // the file that hung has no content
	r.kept("a i:1", "b i:1")
	r.mended()
}

func TestAListWithoutPodsEmptiesTheCheckpoint(t *testing.T) {
	r := newRig(t, newAPIServer(t).client())
	r.remember("node", pod("a", "i:1"))
	r.run()
	r.want(podset.None)
	r.kept()
}

func TestACheckpointThatIsDamagedIsRenamed(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"empty":           func([]byte) []byte { return nil },
		"cut off":         func(data []byte) []byte { return data[:len(data)-1] },
		"a byte is wrong": func(data []byte) []byte { data[len(data)-3] ^= 1; return data },
		"another file":    func([]byte) []byte { return []byte("hello\n") },
		"no pods":         func([]byte) []byte { return sealed("node\n\xff\xff\xff") },
		"no node":         func([]byte) []byte { return sealed("node") },
	} {
		t.Run(name, func(t *testing.T) {
			r := alone(t)
			r.remember("node", pod("a", "i:1"))
			data, err := os.ReadFile(r.checkpoint)
			must(t, err)
			damaged := damage(data)
			must(t, os.WriteFile(r.checkpoint, damaged, checkpointMode))
			must(t, os.WriteFile(r.checkpoint+".damaged", []byte("of before"), checkpointMode))
			r.run()
			e := r.wrong("the checkpoint of the API server's pods is corrupt: ")
			if e.Path != r.checkpoint || !strings.Contains(e.Message, "it is now "+r.checkpoint+".damaged") {
				t.Errorf("error %v, want Path %v and Message with %q", e, r.checkpoint, "it is now "+r.checkpoint+".damaged")
			}
			r.clock.Step(time.Minute)
			if reading := r.until("another failure", func(source.Reading) bool { return true }); !reading.Failed {
				t.Errorf("given: %+v, want Failed true", reading)
			}
			if aside, err := os.ReadFile(r.checkpoint + ".damaged"); err != nil || !bytes.Equal(aside, damaged) {
				t.Errorf("put aside: %q, %v, want %q", aside, err, damaged)
			}
			if _, err := os.Stat(r.checkpoint); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is still there: %v", err)
			}
		})
	}
}

func TestADamagedCheckpointIsMendedByTheNext(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	r := newRig(t, a.client())
	must(t, os.WriteFile(r.checkpoint, []byte("hello"), checkpointMode))
	r.run()
	r.wrong("is corrupt")
	r.mended()
	r.kept("a i:1")
}

func TestTheCheckpointOfAnotherNodeIsNotUsed(t *testing.T) {
	r := alone(t)
	r.remember("other", pod("a", "i:1"))
	r.run()
	r.wrong("none of its pods is known yet")
	r.clock.Step(time.Minute)
	r.wrong("none of its pods is known yet")
}

// TestACheckpointThatCannotBeReadIsReadAgain has a checkpoint of which each read fails with an I/O error, and no API
// server. The checkpoint stays in its place, and its pods run when it can be read.
func TestACheckpointThatCannotBeReadIsReadAgain(t *testing.T) {
	r := alone(t)
	r.remember("node", pod("a", "i:1"))
	must(t, os.Rename(r.checkpoint, r.checkpoint+".good"))
	must(t, os.Symlink("/proc/self/mem", r.checkpoint)) // of which no read succeeds
	r.run()
	if e := r.wrong("cannot be read: "); e.Path != r.checkpoint || !strings.Contains(e.Message, "check the disk") {
		t.Errorf("error %+v, want that of the checkpoint with what to do", e)
	}
	r.timers(1)
	r.clock.Step(restoreAfter)
	if files, err := os.ReadDir(filepath.Dir(r.checkpoint)); err != nil || len(files) != 2 {
		t.Errorf("the directory has %v, %v, want the checkpoint in its place", files, err)
	}
	must(t, os.Rename(r.checkpoint+".good", r.checkpoint))
	for end := time.Now().Add(patience); ; r.pause(time.Millisecond) {
		r.clock.Step(readAgain)
		select {
		case reading := <-r.given:
			if reading.Failed {
				continue
			}
			if reading.Op != podset.Restore || !slices.Equal(texts(reading), []string{"a i:1"}) || strings.Contains(
				fmt.Sprint(reading.Errors), "cannot be read") {
				t.Errorf("given %+v, want the restored pod and no error of the checkpoint", reading)
			}
			return
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the checkpoint is not read again")
		}
	}
}

// withoutDirectory puts the checkpoint into a directory that is not there.
func (r *rig) withoutDirectory() {
	r.checkpoint = filepath.Join(filepath.Dir(r.checkpoint), "missing", "api-pods")
	r.cfg.Checkpoint = r.checkpoint
}

func TestADiskThatCannotBeWrittenIsReportedAndRetried(t *testing.T) {
	a := newAPIServer(t)
	r := newRig(t, a.client())
	r.withoutDirectory()
	r.run()
	a.put(pod("a", "i:1"))
	if e := r.wrong("cannot save the pods of the API server: "); e.Path != r.checkpoint {
		t.Errorf("error %v, want Path %v", e, r.checkpoint)
	}
	a.put(pod("b", "i:1")) // and no pod is delayed
	r.until("the other pod", func(reading source.Reading) bool { return slices.Contains(texts(reading), "b i:1") })
	must(t, os.Mkdir(filepath.Dir(r.checkpoint), 0o700))
	r.timers(2)
	r.clock.Step(saveEvery)
	r.kept("a i:1", "b i:1")
	r.mended()
}

func TestAWriteThatFailedIsTriedAgainThoughNothingChanges(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	r := newRig(t, a.client())
	r.withoutDirectory()
	r.run()
	r.wrong("cannot save the pods of the API server: ")
	must(t, os.Mkdir(filepath.Dir(r.checkpoint), 0o700))
	for end := time.Now().Add(patience); ; r.pause(time.Millisecond) {
		r.clock.Step(saveAgain)
		if _, err := os.Stat(r.checkpoint); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it is not tried again")
		}
	}
	r.kept("a i:1")
	r.mended()
}

// sealed returns a checkpoint of a body with a valid checksum.
func sealed(body string) []byte {
	sum := sha256.Sum256([]byte(body))
	return []byte(checkpointMagic + hex.EncodeToString(sum[:]) + "\n" + body)
}

// FuzzCheckpoint checks that no content of the file makes the decoder panic, and that accepted content is encoded to
// the same file.
func FuzzCheckpoint(f *testing.F) {
	p := pod("a", "i:1")
	good, err := encode("node", map[types.UID]*v1.Pod{p.UID: p})
	if err != nil {
		f.Fatal(err)
	}
	_, body, _ := strings.Cut(string(good), "\n")
	for _, seed := range []string{string(good), body, "", "node\n", "\n", checkpointMagic, "node\n\x12\x00"} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if seal { // content with a valid checksum is tested too
			data = sealed(string(data))
		}
		node, pods, err := decode(data)
		if err != nil {
			if len(pods) > 0 || node != "" {
				t.Errorf("%q and %d pods beside the error %v", node, len(pods), err)
			}
			return
		}
		held := newPods(node, func() string { return "https://server" }, everything)
		held.replace(pods, time.Time{})
		again, err := encode(node, held.held)
		if err != nil {
			t.Fatal(err)
		}
		_, back, err := decode(again)
		if err != nil {
			t.Fatalf("what is written is not read: %v", err)
		}
		if difference := cmp.Diff(held.all(), sorted(mapOf(back)), cmp.Comparer(sameBytes)); difference != "" {
			t.Errorf("the restored pods differ (-want +got):\n%s", difference)
		}
	})
}

func mapOf(pods []*v1.Pod) map[types.UID]*v1.Pod {
	out := map[types.UID]*v1.Pod{}
	for _, p := range pods {
		out[p.UID] = p
	}
	return out
}

func sameBytes(a, b *v1.Pod) bool {
	one, err := a.Marshal()
	other, otherErr := b.Marshal()
	return err == nil && otherErr == nil && bytes.Equal(one, other)
}
