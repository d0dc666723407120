package localsource

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit of a wait.
const patience = 60 * time.Second

// readings is a sink that keeps every reading, and the pods of another source.
type readings struct {
	all    chan source.Reading
	others []source.Holder
}

func (r *readings) Set(_ string, reading source.Reading) { r.all <- reading }

func (r *readings) Holder(name types.NamespacedName, uid types.UID, _ string) (source.Holder, bool) {
	for _, h := range r.others {
		if h.Name == name || h.UID == uid {
			return h, true
		}
	}
	return source.Holder{}, false
}

func (*readings) ObjectHolder(key apiobject.Key, _ string) (from, path string, ok bool) {
	return "file", "/m/theirs.yaml", key.Name == "theirs"
}

// rig is a source on a directory of its own.
type rig struct {
	*Source
	t    *testing.T
	dir  string
	node string
	// cluster is true for a node with an API server.
	cluster bool
	// allowed has the allowed host privileges.
	allowed privilege.Allowed
	clock   *clocktesting.FakeClock
	sink    *readings
	stop    func()
}

// keyFile returns a path beside the directory.
func (r *rig) keyFile() string { return filepath.Join(filepath.Dir(r.dir), "secrets.key") }

func newRig(t *testing.T) *rig {
	t.Helper()
	return &rig{
		t:     t,
		dir:   filepath.Join(t.TempDir(), "applied"),
		node:  "node",
		clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)),
	}
}

// start starts the source on the directory, and returns its first reading.
func (r *rig) start() source.Reading {
	r.t.Helper()
	r.sink = &readings{all: make(chan source.Reading, 100), others: []source.Holder{
		{
			Name: types.NamespacedName{
				Namespace: "default",
				Name:      "theirs-node",
			},
			UID:    "their-uid",
			Source: "file",
			Path:   "/m/theirs.yaml",
		},
	}}
	r.Source = New(Config{
		Dir:        r.dir,
		Node:       r.node,
		Allowed:    r.allowed,
		Standalone: !r.cluster,
		Seals:      sealing.NewKeyring(r.keyFile(), os.Geteuid()),
		MaxPods:    3,
		MaxObjects: 3,
		Others:     func() Others { return r.sink },
		Clock:      r.clock,
		Tracer:     noop.NewTracerProvider().Tracer(""),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	src, sink := r.Source, r.sink
	go func() { done <- src.Run(ctx, sink) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}
	r.t.Cleanup(r.stop)
	return r.next()
}

// restart starts a new process on the same directory.
func (r *rig) restart() source.Reading {
	r.t.Helper()
	r.stop()
	return r.start()
}

func (r *rig) next() source.Reading {
	r.t.Helper()
	select {
	case reading := <-r.sink.all:
		return reading
	case <-time.After(patience):
		r.t.Fatal("no reading came")
		return source.Reading{}
	}
}

func (r *rig) apply(p *v1.Pod) podset.Op {
	r.t.Helper()
	applied, err := r.Apply(r.t.Context(), p, false)
	if err != nil {
		r.t.Fatalf("applying %s: %v", p.Name, err)
	}
	return applied.Op
}

func pod(name, image string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
}

// images says the pods of a reading by name and image.
func images(reading source.Reading) map[string]string {
	out := map[string]string{}
	for _, p := range reading.Pods {
		out[p.Namespace+"/"+p.Name] = p.Spec.Containers[0].Image
	}
	return out
}

func expect(t *testing.T, reading source.Reading, want map[string]string) {
	t.Helper()
	if got := images(reading); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("pods %v, want %v", got, want)
	}
}

func TestAppliedPodsStayThroughRestarts(t *testing.T) {
	r := newRig(t)
	if first := r.start(); first.Failed || len(first.Pods) != 0 || first.ReadAt.IsZero() || first.Mode != mode {
		t.Fatalf("the first reading is %+v, want an empty one", first)
	}
	if op := r.apply(pod("a", "i:1")); op != podset.Add {
		t.Errorf("a new pod: %v, want Add", op)
	}
	given := r.next()
	expect(t, given, map[string]string{"default/a-node": "i:1"})
	uid, path := given.Pods[0].UID, given.Pods[0].Path
	if given.Causes[path] == nil {
		t.Error("the change has no trace")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || filepath.Dir(path) != r.dir {
		t.Errorf("the pod is kept in %s: %v, %v; want a file of the owner's alone", path, info, err)
	}
	if op := r.apply(pod("a", "i:1")); op != podset.None {
		t.Errorf("the same pod: %v, want None", op)
	}
	again := r.restart()
	expect(t, again, map[string]string{"default/a-node": "i:1"})
	if again.Pods[0].UID != uid {
		t.Errorf("after a restart the pod has the UID %s, before it had %s", again.Pods[0].UID, uid)
	}
	if op := r.apply(pod("a", "i:2")); op != podset.Update {
		t.Errorf("another version: %v, want Update", op)
	}
	// The reading of the update is the next one: the unchanged pod caused none.
	expect(t, r.next(), map[string]string{"default/a-node": "i:2"})
	if err := r.Delete(t.Context(), types.NamespacedName{Name: "a-node"}); err != nil {
		t.Fatal(err)
	}
	expect(t, r.next(), nil)
	expect(t, r.restart(), nil)
}

func TestADryRunChangesNothing(t *testing.T) {
	r := newRig(t)
	r.start()
	applied, err := r.Apply(t.Context(), pod("a", "i:1"), true)
	if err != nil || applied.Op != podset.Add || applied.Pod.Name != "a-node" ||
		applied.Pod.Spec.RestartPolicy != v1.RestartPolicyAlways {
		t.Errorf("the dry run gave %+v, %v; want the pod with its defaults", applied, err)
	}
	var taken *TakenError
	if _, err := r.Apply(t.Context(), pod("theirs", "i:1"), true); !errors.As(err, &taken) {
		t.Errorf("a dry run of a name that is taken: %v", err)
	}
	expect(t, r.restart(), nil)
}

func TestInvalidObjectsAreRefused(t *testing.T) {
	r := newRig(t)
	r.start()
	withUID := pod("a", "i:1")
	withUID.UID = "mine"
	r.apply(withUID)
	r.next()
	large := pod("large", "i:1")
	large.Annotations = map[string]string{"a": strings.Repeat("x", maxManifest)}
	sameUID, theirUID := pod("b", "i:1"), pod("c", "i:1")
	sameUID.UID, theirUID.UID = "mine", "their-uid"
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		want string
	}{
		"no image":               {pod("x", ""), "default/x-node: spec.containers[0].image: Required value"},
		"a path for a name":      {pod("../../x", "i"), "metadata.name"},
		"no name":                {pod("", "i"), "metadata.name: required"},
		"too large":              {large, "bytes as JSON"},
		"the name is another's":  {pod("theirs", "i"), `the name is that of the pod default/theirs-node of the source "file", in /m/theirs.yaml`},
		"the UID is another's":   {theirUID, `the UID is that of the pod default/theirs-node of the source "file"`},
		"the UID is of this one": {sameUID, `the UID is that of the pod default/a-node of the source "local"`},
	} {
		if _, err := r.Apply(t.Context(), tc.pod, false); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	r.apply(pod("b", "i:1"))
	r.apply(pod("c", "i:1"))
	var full *FullError
	if _, err := r.Apply(t.Context(), pod("d", "i:1"), false); !errors.As(err, &full) {
		t.Errorf("one pod more than there may be: %v, want a *FullError", err)
	}
	if op := r.apply(pod("c", "i:2")); op != podset.Update {
		t.Errorf("a full source refuses no new version: %v", op)
	}
	expect(t, r.restart(), map[string]string{"default/a-node": "i:1", "default/b-node": "i:1", "default/c-node": "i:2"})
}

func TestTheNameOfADeletionIsUnderstood(t *testing.T) {
	r := newRig(t)
	r.start()
	r.apply(pod("a", "i"))
	r.apply(pod("a-node", "i"))
	remove := func(name string) error {
		return r.Delete(t.Context(), types.NamespacedName{Namespace: "default", Name: name})
	}
	var ambiguous *AmbiguousError
	if err := remove("a-node"); !errors.As(err, &ambiguous) {
		t.Errorf("a name of two pods: %v, want an *AmbiguousError", err)
	}
	for _, name := range []string{"a-node-node", "a-node"} {
		if err := remove(name); err != nil {
			t.Errorf("deleting %s: %v", name, err)
		}
	}
	var unknown *UnknownError
	if err := remove("a"); !errors.As(err, &unknown) {
		t.Errorf("a pod that is not there: %v, want an *UnknownError", err)
	}
	expect(t, r.restart(), nil)
}

func TestACallEndsWithItsContextAndWithTheSource(t *testing.T) {
	r := newRig(t)
	r.start()
	r.stop()
	if _, err := r.Apply(t.Context(), pod("a", "i"), false); !errors.Is(err, ErrEnded) {
		t.Errorf("a source that has ended: %v, want ErrEnded", err)
	}
	idle := New(Config{Dir: r.dir, Node: "node"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := idle.Delete(ctx, types.NamespacedName{Name: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that was given up: %v, want context.Canceled", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
