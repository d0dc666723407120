package siteobjects

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newObjects returns objects without a client, whose answers the test gives.
func newObjects(dir string, log *bytes.Buffer) *Objects {
	return New(Config{
		Checkpoint: filepath.Join(dir, "objects"), Seals: sealing.NewKeyring(filepath.Join(dir, "key"), os.Geteuid()),
		Requested: func(string, reflector.Verb, error) {}, Clock: clock.RealClock{},
		Served: stream.NewServedMetrics(prometheus.NewRegistry(), stream.NameObjects),
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
}

func secretKey(name string) apiobject.Key {
	return apiobject.Key{Kind: apiobject.Secret, Namespace: "shop", Name: name}
}

// pod returns a pod that names secrets, and of services that of the API server.
func pod(uid string, secrets ...string) source.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, Namespace: "shop", UID: types.UID(uid)}}
	p.Spec.EnableServiceLinks = new(bool)
	for _, name := range secrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, v1.LocalObjectReference{Name: name})
	}
	return source.Pod{Pod: p}
}

// answer is the API server's answer for a secret: a value, or that it is missing if the value is empty.
func (o *Objects) answer(name, value string) {
	var object runtime.Object
	if value != "" {
		object = &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"}, Data: map[string][]byte{"k": []byte(value)},
		}
	}
	o.says(secretKey(name), object)
}

// says is the API server's answer for an object; nil means that there is none.
func (o *Objects) says(key apiobject.Key, object runtime.Object) {
	o.mu.Lock()
	h := o.held[key]
	o.mu.Unlock()
	switch {
	case h == nil:
	case object == nil:
		o.saw(key, h, nil, false)
	default:
		data, immutable, _ := encode(object)
		o.saw(key, h, data, immutable)
	}
}

// has returns what is in the stream of a node: the values of secrets, or "missing".
func (n *Node) has() map[string]string {
	out := map[string]string{}
	for _, entry := range n.level.List() {
		switch o := entry.Object; {
		case o == nil || o.GetKind() != string(apiobject.Secret):
		case o.GetMissing():
			out[o.GetName()] = "missing"
		default:
			decoded, err := apiobject.Unmarshal(apiobject.Secret, o.GetObject())
			if err != nil {
				panic(err)
			}
			out[o.GetName()] = string(decoded.Secret.Data["k"])
		}
	}
	return out
}

// TestContentIsInMemoryOnce: nodes share what is sent to them.
func TestContentIsInMemoryOnce(t *testing.T) {
	o := newObjects(t.TempDir(), &bytes.Buffer{})
	a, b := o.NewNode(), o.NewNode()
	for _, n := range []*Node{a, b} {
		n.want()
		n.Use(source.Reading{Pods: []source.Pod{pod("p", "login")}})
	}
	o.answer("login", "hunter2")
	if x, y := a.objects(), b.objects(); len(x) != 1 || len(y) != 1 || x[0] != y[0] { // the service is not known
		t.Errorf("a has %v, b has %v, want one object for both", x, y)
	}
	if got := a.Objects(""); len(got) != 1 || got[0].GetKeys()[0].GetBytes() != 7 ||
		strings.Contains(got[0].String(), "hunter2") {
		t.Errorf("the summary is %v", got)
	}
	if got := a.Counts()[apiobject.Secret]; got != 1 {
		t.Errorf("there are %d secrets, want 1", got)
	}
}

// stopped runs the keeper of a checkpoint until it has written the last changes.
func (o *Objects) stopped() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { o.keep(ctx) })
	cancel()
	running.Wait()
}

// TestTheCheckpointOfObjects: a restarted process has what was known, also what was missing; no value of a secret is in
// the file, and a secret under another name cannot be read.
func TestTheCheckpointOfObjects(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	o := newObjects(dir, &log)
	n := o.NewNode()
	n.want()
	n.Use(source.Reading{Pods: []source.Pod{pod("p", "login", "none", "unknown")}})
	o.answer("login", "hunter2")
	o.answer("none", "")
	o.stopped()
	file, err := os.ReadFile(o.cfg.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(file, []byte("hunter2")) || bytes.Contains(file, []byte("aHVudGVyMg")) {
		t.Errorf("the value of the secret is in the file: %s", file)
	}
	info, err := os.Stat(o.cfg.Checkpoint)
	if err != nil || info.Mode().Perm() != checkpointMode {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}

	again := newObjects(dir, &log)
	again.Load()
	restored := again.NewNode()
	restored.want()
	restored.Use(source.Reading{Op: podset.Restore, Pods: []source.Pod{pod("p", "login", "none", "unknown")}})
	want := map[string]string{"login": "hunter2", "none": "missing"}
	if got := restored.has(); !maps.Equal(got, want) || restored.ready {
		t.Errorf("after a restart it has %v, ready %t; want %v and not ready", got, restored.ready, want)
	}
	if log.Len() > 0 {
		t.Errorf("the log is %s", &log)
	}

	for name, change := range map[string]func([]byte) []byte{
		"changed": func(b []byte) []byte { return bytes.Replace(b, []byte("login"), []byte("other"), 1) },
		"half":    func(b []byte) []byte { return b[:len(b)/2] },
		"under no check": func([]byte) []byte {
			return []byte(`{"objects":[{"kind":"Secret","name":"x","data":"eA=="},{"kind":"Pod","name":"x"}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			broken := newObjects(dir, &log)
			if err := os.WriteFile(broken.cfg.Checkpoint, change(slices.Clone(file)), 0o600); err != nil {
				t.Fatal(err)
			}
			broken.Load()
			if len(broken.saved) > 0 || log.Len() == 0 || strings.Contains(log.String(), "hunter2") {
				t.Errorf("it has %v, and the log is %q", broken.saved, log.String())
			}
		})
	}
}

// TestUnusedObjectsLeaveTheCheckpoint when all pods are known.
func TestUnusedObjectsLeaveTheCheckpoint(t *testing.T) {
	dir := t.TempDir()
	o := newObjects(dir, &bytes.Buffer{})
	n := o.NewNode()
	n.want()
	n.Use(source.Reading{Pods: []source.Pod{pod("p", "a", "b")}})
	o.answer("a", "x")
	o.answer("b", "y")
	o.stopped()
	again := newObjects(dir, &bytes.Buffer{})
	again.Load()
	again.NewNode().Use(source.Reading{Pods: []source.Pod{pod("p", "a")}}) // its syncloop has not connected yet
	if got := len(again.known()); got != 2 {
		t.Errorf("before the pods are known %d objects are kept, want 2", got)
	}
	again.Settle()
	if got := again.known(); len(got) != 1 || got[0].GetName() != "a" {
		t.Errorf("then %v are kept, want a", got)
	}
}

// TestAnImmutableObjectNeedsNoWatch.
func TestAnImmutableObjectNeedsNoWatch(t *testing.T) {
	o := newObjects(t.TempDir(), &bytes.Buffer{})
	n := o.NewNode()
	n.want()
	n.Use(source.Reading{Pods: []source.Pod{pod("p", "fixed")}})
	ended := 0
	h := o.held[secretKey("fixed")]
	h.stop = func() { ended++ }
	data, immutable, ok := encode(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "fixed"}, Immutable: ptr.To(true)})
	o.saw(secretKey("fixed"), h, data, immutable)
	if !ok || ended != 1 {
		t.Errorf("the watch ended %d times, want 1", ended)
	}
}

// FuzzCheckpoint: no content of the file makes the process panic, or gives an object without a known kind.
func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(`{"objects":[{"kind":"ConfigMap","namespace":"shop","name":"x","data":"CgA="}]}`))
	f.Add([]byte(`{"objects":[{"kind":"Secret","name":"x","box":{"key":"k","data":"eA=="}}]}`))
	f.Add([]byte(fmt.Sprintf(`{"objects":[%s]}`, `{}`)))
	f.Fuzz(func(t *testing.T, content []byte) {
		o := newObjects(t.TempDir(), &bytes.Buffer{})
		if err := os.WriteFile(o.cfg.Checkpoint, content, 0o600); err != nil {
			t.Fatal(err)
		}
		o.Load()
		for key := range o.saved {
			if !key.Kind.OfSite() {
				t.Errorf("it has %v", key)
			}
		}
	})
}
