package rotation_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/filesource"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/rotation"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/test/killpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is the part of a process that stores secrets in a state directory: two applied ones, and one of a manifest.
type node struct {
	t        *testing.T
	root     string
	seals    *sealing.Keyring
	local    *localsource.Source
	rotation *rotation.Rotation
	// readings are the last readings of the sources, by name.
	readings chan map[string]source.Reading
	stop     func()
}

// sink keeps the last reading of each source.
type sink struct {
	last chan map[string]source.Reading
}

func (s sink) Set(name string, reading source.Reading) {
	all := <-s.last
	all[name] = reading
	s.last <- all
}

func (sink) Holder(types.NamespacedName, types.UID, string) (source.Holder, bool) {
	return source.Holder{}, false
}

func (sink) ObjectHolder(apiobject.Key, string) (from, path string, ok bool) { return "", "", false }

func start(t *testing.T, root string) *node {
	t.Helper()
	n := &node{
		t:        t,
		root:     root,
		seals:    sealing.NewKeyring(filepath.Join(root, "state", "secrets.key"), os.Geteuid()),
		readings: make(chan map[string]source.Reading, 1),
	}
	n.readings <- map[string]source.Reading{}
	to, tracer := sink{n.readings}, noop.NewTracerProvider().Tracer("")
	n.local = localsource.New(localsource.Config{
		Dir: filepath.Join(
			root,
			"state",
			"applied",
		),
		Node:       "node",
		Standalone: true,
		Seals:      n.seals,
		MaxPods:    10,
		MaxObjects: 10,
		Others:     func() localsource.Others { return to },
		Clock:      clock.RealClock{},
		Tracer:     tracer,
	})
	file := filesource.New(filesource.Config{
		Path: filepath.Join(
			root,
			"manifests",
		),
		Node:       "node",
		Standalone: true,
		Seals:      n.seals,
		Period:     time.Hour,
		Checkpoint: filepath.Join(root, "state", "manifests.json"),
		Clock:      clock.RealClock{},
		Tracer:     tracer,
		Logger:     slog.New(slog.DiscardHandler),
		Metrics:    filesource.NewMetrics(prometheus.NewRegistry()),
	})
	n.rotation = rotation.New(n.seals, n.local, file)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- n.local.Run(ctx, to) }()
	go func() { done <- file.Run(ctx, to) }()
	n.stop = func() {
		cancel()
		must(t, errors.Join(<-done, <-done))
	}
	return n
}

// secrets waits until both sources are ready, and returns the secrets with their values.
func (n *node) secrets() []string {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		all := <-n.readings
		var out []string
		for _, reading := range all {
			for _, o := range reading.Objects {
				out = append(out, o.Secret.Name+"="+string(o.Secret.Data["key"]))
			}
		}
		ready := len(all) == 2
		n.readings <- all
		if ready {
			slices.Sort(out)
			return out
		}
		if time.Now().After(end) {
			n.t.Fatal("the sources do not speak")
		}
	}
}

func (n *node) apply(name, value string) {
	n.t.Helper()
	_, err := n.local.ApplyObject(n.t.Context(), &apiobject.Object{Secret: &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"key": value},
	}}, false)
	must(n.t, err)
}

// prepare creates a state directory with secrets, and returns the name of their key. It then breaks the manifest, so
// that its secret is only in the checkpoint.
func prepare(t *testing.T) (root, key string) {
	t.Helper()
	root = t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "state"), 0o700))
	must(t, os.MkdirAll(filepath.Join(root, "manifests"), 0o700))
	manifest := filepath.Join(root, "manifests", "a.yaml")
	must(
		t,
		os.WriteFile(
			manifest,
			[]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: filed}\nstringData: {key: f}\n"),
			0o600,
		),
	)
	n := start(t, root)
	n.apply("a", "1")
	n.apply("b", "2")
	n.secrets()
	n.stop()
	must(t, os.WriteFile(manifest, []byte("{"), 0o600))
	key, err := n.seals.Current()
	must(t, err)
	return root, key
}

// all are the secrets that prepare makes.
const all = "a=1 b=2 filed=f"

func TestARotationLeavesNothingOfTheOldKey(t *testing.T) {
	root, old := prepare(t)
	n := start(t, root)
	n.secrets()
	files, key, err := n.rotation.Rotate(t.Context())
	// The checkpoint may have been written with the new key already.
	if err != nil || files < 2 || files > 3 || key == old {
		t.Errorf("%d files, key %s, %v; want those of the secrets and another key than %s", files, key, err, old)
	}
	n.apply("c", "3")
	n.stop()
	sealedWith(t, root, old, false)
	n = start(t, root)
	defer n.stop()
	if got := n.secrets(); strings.Join(got, " ") != "a=1 b=2 c=3 filed=f" {
		t.Errorf("after it there are %q", got)
	}
}

// sealedWith checks whether the name of a key is in any file of the state directory.
func sealedWith(t *testing.T, root, key string, want bool) {
	t.Helper()
	found := false
	must(t, filepath.WalkDir(filepath.Join(root, "state"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || strings.Contains(string(content), key)
		return err
	}))
	if found != want {
		t.Errorf("the key %s is in the state directory: %v, want %v", key, found, want)
	}
}

func TestWithoutASecretThereIsNoKeyToRotate(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "state"), 0o700))
	n := start(t, root)
	defer n.stop()
	if files, key, err := n.rotation.Rotate(t.Context()); files != 0 || key != "" || err != nil {
		t.Errorf("%d files, key %q, %v; want nothing", files, key, err)
	}
	if _, err := os.Stat(n.seals.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the key file: %v, want none", err)
	}
}

// A rotation consists of several system calls. A real process is killed before each of them, and once after all: the
// next process has every secret, continues the rotation, and leaves nothing of the old key.
func TestAKillBeforeAnySystemCallOfARotationLosesNothing(t *testing.T) {
	if root := os.Getenv("ROTATION_TEST_ROOT"); root != "" {
		n := start(t, root)
		n.secrets()
		_, _, err := n.rotation.Rotate(t.Context())
		must(t, err)
		n.stop()
		return
	}
	calls := killed(t, 0)
	if text := strings.Join(calls, "\n"); strings.Count(text, "rename ") < 5 || strings.Count(text, "sync ") < 10 {
		t.Errorf(
			"a rotation is\n%s\nwant five files replaced: the key file twice, two secrets and the checkpoint, each synced with its directory",
			text,
		)
	}
	for i := range calls {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			t.Parallel()
			killed(t, i+1)
		})
	}
}

// killed rotates in a process that is killed before its nth call, or not at all, and returns its calls.
func killed(t *testing.T, n int) []string {
	t.Helper()
	root, old := prepare(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillBeforeAnySystemCallOfARotationLosesNothing$")
	cmd.Env = append(os.Environ(), "ROTATION_TEST_ROOT="+root)
	tr := &killpoint.Tracer{Root: filepath.Join(root, "state"), Kill: n}
	status := tr.Run(t, cmd)
	where := fmt.Sprintf("killed before call %d of %q", n, tr.Calls)
	if status.Signaled() != (n > 0) || !status.Signaled() && status.ExitStatus() != 0 {
		t.Fatalf("%s: the process ended with %#x", where, status)
	}
	next := start(t, root)
	if got := next.secrets(); strings.Join(got, " ") != all {
		t.Errorf("%s: there are %q, want %q", where, got, all)
	}
	rotating, err := next.seals.Rotating()
	must(t, err)
	must(t, next.rotation.Resume(t.Context()))
	if again, err := next.seals.Rotating(); again || err != nil {
		t.Errorf("%s: after going on there are two keys still, %v", where, err)
	}
	next.stop()
	key, err := next.seals.Current()
	must(t, err)
	if rotating || key != old {
		sealedWith(t, root, old, false)
	}
	last := start(t, root)
	defer last.stop()
	if got := last.secrets(); strings.Join(got, " ") != all {
		t.Errorf("%s: after going on there are %q", where, got)
	}
	files, err := os.ReadDir(filepath.Join(root, "state"))
	must(t, err)
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".secrets.key") {
			t.Errorf("%s: %s is left, with a key", where, file.Name())
		}
	}
	return tr.Calls
}
