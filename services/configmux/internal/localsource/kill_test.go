package localsource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/test/killpoint"
)

// step is one call of a scenario, and the state after its answer.
type step struct {
	name string
	call func(context.Context, *Source) error
	// pods are images by pod, with config maps and secrets and their values as "secret a", and broken the files that hold
	// none, by the names that the scenario gives them.
	pods   map[string]string
	broken []string
}

// scenario is the life of a process: it starts on a directory, does its steps, and answers each.
type scenario struct {
	// prepare creates the state before the start.
	prepare func(r *rig)
	// steps begin with the start, whose call is a no-op.
	steps []step
	// calls are all changes below the state directory in order. The name of a file is its pod's.
	calls []string
}

func applies(name, image string) func(context.Context, *Source) error {
	return func(ctx context.Context, s *Source) error {
		_, err := s.Apply(ctx, pod(name, image), false)
		return err
	}
}

func deletes(name string) func(context.Context, *Source) error {
	return func(ctx context.Context, s *Source) error { return s.Delete(ctx, types.NamespacedName{Name: name}) }
}

func appliesObject(object *apiobject.Object) func(context.Context, *Source) error {
	return func(ctx context.Context, s *Source) error {
		_, err := s.ApplyObject(ctx, object, false)
		return err
	}
}

func deletesObject(kind apiobject.Kind, name string) func(context.Context, *Source) error {
	return func(ctx context.Context, s *Source) error {
		return s.DeleteObject(ctx, apiobject.Key{Kind: kind, Name: name})
	}
}

func nothing(context.Context, *Source) error { return nil }

// written are the calls that put a file into its place. What a file holds is on the disk before it has its name, and
// the name before anyone is told.
func written(name string) []string { return writtenIn("applied", name+".json") }

func writtenIn(dir, name string) []string {
	temporary := filepath.Join(dir, "."+name+".tmp")
	return []string{
		"create " + temporary, "write " + temporary, "chmod " + temporary, "sync " + temporary,
		"rename " + temporary + " " + filepath.Join(dir, name), "sync " + dir,
	}
}

func removed(name string) []string { return []string{"remove applied/" + name, "sync applied"} }

func answered() []string { return []string{"write answers"} }

func scenarios() map[string]scenario {
	return map[string]scenario{
		"an empty node": {
			prepare: func(*rig) {},
			steps: []step{
				{"start", nothing, nil, nil},
				{"create", applies("a", "i:1"), map[string]string{"a": "i:1"}, nil},
				{"replace", applies("a", "i:2"), map[string]string{"a": "i:2"}, nil},
				{"delete", deletes("a"), nil, nil},
			},
			calls: slices.Concat(
				[]string{"mkdir applied", "sync .", "sync applied"}, answered(),
				written("a"), answered(), written("a"), answered(), removed("a.json"), answered(),
			),
		},
		"config maps and secrets": {
			prepare: func(*rig) {},
			steps: []step{
				{"start", nothing, nil, nil},
				{"create a config map", appliesObject(configMap("c", "1")), map[string]string{"configmap c": "1"}, nil},
				{"create a secret", appliesObject(secret("s", "1")), map[string]string{"configmap c": "1", "secret s": "1"}, nil},
				{"replace it", appliesObject(secret("s", "2")), map[string]string{"configmap c": "1", "secret s": "2"}, nil},
				{
					"replace the config map",
					appliesObject(configMap("c", "2")),
					map[string]string{"configmap c": "2", "secret s": "2"},
					nil,
				},
				{"delete the config map", deletesObject(apiobject.ConfigMap, "c"), map[string]string{"secret s": "2"}, nil},
				{"delete the secret", deletesObject(apiobject.Secret, "s"), nil, nil},
			},
			// The key is durable before anything that it encrypts.
			calls: slices.Concat(
				[]string{"mkdir applied", "sync .", "sync applied"},
				answered(),
				writtenIn(
					"applied",
					"c.configmap",
				),
				answered(),
				writtenIn(".", "secrets.key"),
				writtenIn("applied", "s.secret"),
				answered(),
				writtenIn("applied", "s.secret"),
				answered(),
				writtenIn("applied", "c.configmap"),
				answered(),
				removed("c.configmap"),
				answered(),
				removed("s.secret"),
				answered(),
			),
		},
		"a node with other pods, and with what crashes have left": {
			prepare: func(r *rig) {
				r.start()
				r.apply(pod("other", "i:1"))
				r.stop()
				for _, name := range []string{"bad", "worse"} {
					must(r.t, os.WriteFile(r.file(name)+".broken", []byte("{"), 0o600))
				}
				must(r.t, os.WriteFile(r.file("half"), nil, 0o600))
				left := filepath.Join(r.dir, "."+filepath.Base(r.file("left"))+".tmp-1")
				must(r.t, os.WriteFile(left, nil, 0o600))
			},
			steps: []step{
				{
					"start",
					nothing,
					map[string]string{"other": "i:1"},
					[]string{"bad.json.broken", "half.json.broken", "worse.json.broken"},
				},
				{
					"create",
					applies("a", "i:1"),
					map[string]string{"a": "i:1", "other": "i:1"},
					[]string{"bad.json.broken", "half.json.broken", "worse.json.broken"},
				},
				{
					"create anew",
					applies("bad", "i:2"),
					map[string]string{"a": "i:1", "bad": "i:2", "other": "i:1"},
					[]string{"half.json.broken", "worse.json.broken"},
				},
				{
					"delete what is broken",
					deletes("worse"),
					map[string]string{"a": "i:1", "bad": "i:2", "other": "i:1"},
					[]string{"half.json.broken"},
				},
				{
					"replace",
					applies("a", "i:2"),
					map[string]string{"a": "i:2", "bad": "i:2", "other": "i:1"},
					[]string{"half.json.broken"},
				},
				{"delete", deletes("a"), map[string]string{"bad": "i:2", "other": "i:1"}, []string{"half.json.broken"}},
			},
			calls: slices.Concat(
				[]string{
					"sync .",
					"sync applied",
				},
				removed(".left.json.tmp"),
				[]string{"rename applied/half.json applied/half.json.broken"},
				answered(),
				written("a"),
				answered(),
				written("bad"),
				removed("bad.json.broken"),
				answered(),
				removed("worse.json.broken"),
				answered(),
				written("a"),
				answered(),
				removed("a.json"),
				answered(),
			),
		},
	}
}

// file returns the path of a pod's file.
func (r *rig) file(name string) string {
	r.t.Helper()
	s := New(Config{Dir: r.dir, Node: r.node})
	return s.pathOf(types.NamespacedName{Namespace: "default", Name: name})
}

// nameFiles gives files the names of their pods in a text.
func (r *rig) nameFiles(text string) string {
	for _, name := range []string{"a", "other", "bad", "worse", "half", "left"} {
		text = strings.ReplaceAll(text, filepath.Base(r.file(name)), name+".json")
	}
	for name, object := range map[string]*apiobject.Object{"c.configmap": configMap("c", ""), "s.secret": secret("s", "")} {
		s, key := New(Config{Dir: r.dir}), object.Key()
		key.Namespace = "default"
		text = strings.ReplaceAll(text, filepath.Base(s.objectPath(key)), name)
	}
	return text
}

// A change consists of several system calls. A real process is killed before each of them, and once after all: the next
// process finds the pod as before the change or as after it, all other pods unchanged, no temporary file, and every
// answered change.
func TestAKillBeforeAnySystemCallLosesNothing(t *testing.T) {
	if root := os.Getenv("LOCALSOURCE_TEST_ROOT"); root != "" {
		live(t, root, scenarios()[os.Getenv("LOCALSOURCE_TEST_SCENARIO")])
		return
	}
	for name, sc := range scenarios() {
		t.Run(name, func(t *testing.T) {
			whole := killed(t, name, sc, 0)
			for i := range whole {
				killed(t, name, sc, i+1)
			}
		})
	}
}

// killed runs a scenario in a process that is killed before its nth call, or not at all, and returns its calls.
func killed(t *testing.T, name string, sc scenario, n int) []string {
	t.Helper()
	root := t.TempDir()
	r := newRig(t)
	r.dir = filepath.Join(root, "applied")
	sc.prepare(r)
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillBeforeAnySystemCallLosesNothing$")
	cmd.Env = append(os.Environ(), "LOCALSOURCE_TEST_ROOT="+root, "LOCALSOURCE_TEST_SCENARIO="+name)
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	must(t, err)
	defer func() { must(t, output.Close()) }()
	cmd.Stdout, cmd.Stderr = output, output
	answers, err := os.Create(filepath.Join(root, "answers"))
	must(t, err)
	defer func() { must(t, answers.Close()) }()
	cmd.ExtraFiles = []*os.File{answers}
	tr := &killpoint.Tracer{Root: root, Kill: n}
	status := tr.Run(t, cmd)
	calls := make([]string, 0, len(tr.Calls))
	for _, call := range tr.Calls {
		calls = append(calls, r.nameFiles(call))
	}
	want := sc.calls
	if n > 0 {
		want = want[:n]
	}
	if !slices.Equal(calls, want) || status.Signaled() != (n > 0) {
		said, err := os.ReadFile(output.Name())
		t.Fatalf(
			"the process ended with %#x after\n%s\nwant\n%s\nit said %s, %v",
			status,
			strings.Join(calls, "\n"),
			strings.Join(want, "\n"),
			said,
			err,
		)
	}
	answered, err := os.ReadFile(answers.Name())
	must(t, err)
	where := "at the end"
	if n > 0 {
		where = fmt.Sprintf("killed before call %d, %s", n, calls[n-1])
	}
	r.survives(sc, len(answered), where)
	return calls
}

// live runs in the process that is killed: it does the steps of the scenario, and answers each with a byte.
func live(t *testing.T, root string, sc scenario) {
	t.Helper()
	answers := os.NewFile(3, "answers")
	sink := &readings{all: make(chan source.Reading, 100)}
	s := New(Config{
		Dir: filepath.Join(
			root,
			"applied",
		),
		Node:       "node",
		Standalone: true,
		Seals:      sealing.NewKeyring(filepath.Join(root, "secrets.key"), os.Geteuid()),
		MaxPods:    10,
		MaxObjects: 10,
		Others:     func() Others { return sink },
		Clock:      clock.RealClock{},
		Tracer:     noop.NewTracerProvider().Tracer(""),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, sink) }()
	<-sink.all
	for _, step := range sc.steps {
		must(t, step.call(ctx, s))
		_, err := answers.Write([]byte{'.'})
		must(t, err)
	}
	cancel()
	must(t, <-done)
}

// survives checks that a process that starts after a number of answers finds an allowed state, and can continue.
func (r *rig) survives(sc scenario, answered int, where string) {
	r.t.Helper()
	found := r.state(r.start())
	next := min(answered, len(sc.steps)-1)
	want := []string{stateOf(sc.steps[next])}
	if answered > 0 {
		want = append(want, stateOf(sc.steps[answered-1]))
	}
	if !slices.Contains(want, found) {
		r.t.Errorf("%s, after %d answers: %s, want one of %q", where, answered, found, want)
	}
	if again := r.state(r.restart()); again != found {
		r.t.Errorf("%s: %s, and after another start %s", where, found, again)
	}
	files, err := os.ReadDir(r.dir)
	must(r.t, err)
	for _, file := range files {
		if strings.Contains(file.Name(), ".tmp") {
			r.t.Errorf("%s: the temporary file %s is left", where, file.Name())
		}
	}
	// A client without an answer retries, and continues.
	for _, step := range sc.steps[next:] {
		var unknown *UnknownError
		var noObject *UnknownObjectError
		if err := step.call(r.t.Context(), r.Source); err != nil && !errors.As(err, &unknown) && !errors.As(err, &noObject) {
			r.t.Errorf("%s: %s again: %v, want success or that the object does not exist", where, step.name, err)
		}
	}
	if got, want := r.state(r.restart()), stateOf(sc.steps[len(sc.steps)-1]); got != want {
		r.t.Errorf("%s: going on leads to %s, want %s", where, got, want)
	}
	r.stop()
}

// state says the pods of a reading, and the files that hold none.
func (r *rig) state(reading source.Reading) string {
	pods := map[string]string{}
	for name, image := range images(reading) {
		pods[strings.TrimSuffix(strings.TrimPrefix(name, "default/"), "-node")] = image
	}
	for _, o := range reading.Objects {
		pods[strings.Replace(o.String(), "default/", "", 1)] = valueOf(o.Object)
	}
	broken := make([]string, 0, len(reading.Errors))
	for _, e := range reading.Errors {
		broken = append(broken, r.nameFiles(filepath.Base(e.Path)))
	}
	slices.Sort(broken)
	return stateOf(step{pods: pods, broken: broken})
}

// stateOf says what is there after a step.
func stateOf(s step) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		words = append(words, name+" "+s.pods[name])
	}
	return strings.Join(append(words, s.broken...), ", ")
}
