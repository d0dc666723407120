package volumeprojected_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/clustertrustbundles"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podcertificates"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumeprojected"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ptr[T any](v T) *T { return &v }

// hidden is in every secret and token of these tests.
const hidden = "hunter2"

// rig has the plugins with real mounts, and objects that change.
type rig struct {
	t       *testing.T
	dir     string
	mounter volumes.Mounter
	objects *objects
	tokens  volumeprojected.Tokens
	plugins []volumes.Plugin
	// memory is the memory that pods may use, in bytes; 0 if it is unknown.
	memory int64
	// swappable counts the calls of Swappable.
	swappable int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	require.Root(t, "mounting")
	r := &rig{
		t: t, dir: t.TempDir(), mounter: volumes.Machine{}, tokens: everyToken{},
		objects: &objects{all: map[string]any{}, requests: map[string]int{}},
	}
	r.restart()
	return r
}

// restart creates the plugins of a new process without any state.
func (r *rig) restart() {
	r.plugins = volumeprojected.Plugins(volumeprojected.Config{
		Mounter: r.mounter, Swappable: func() { r.swappable++ }, Memory: func(context.Context) int64 { return r.memory },
		Objects: r.objects, Tokens: r.tokens,
		TrustBundles: clustertrustbundles.None{}, Certificates: podcertificates.None{},
		Clock: clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0)),
		Node: func(context.Context) (*v1.Node, error) {
			return &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}}}, nil
		},
	})
}

// volume is a volume of a pod.
type volume struct {
	r      *rig
	plugin volumes.Plugin
	volumes.Request
}

// volume returns the only volume of a new pod. It is not set up yet.
func (r *rig) volume(source v1.VolumeSource) *volume {
	r.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u-1", Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: source}}, Containers: []v1.Container{{Name: "app", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}}},
	}
	v := &volume{r: r, Request: volumes.Request{Pod: pod, Volume: &pod.Spec.Volumes[0]}}
	for _, p := range r.plugins {
		if p.CanSupport(v.Volume) {
			if v.plugin != nil {
				r.t.Fatalf("%s and %s both support it", p.Name(), v.plugin.Name())
			}
			v.plugin = p
		}
	}
	if v.plugin == nil {
		r.t.Fatal("no plugin supports it")
	}
	v.Dir = filepath.Join(r.dir, "u-1/volumes", v.plugin.Name(), "v")
	if err := os.MkdirAll(filepath.Dir(v.Dir), 0o750); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = v.tearDown() })
	return v
}

// setUp sets up the volume with the current process's plugins.
func (v *volume) setUp() error {
	for _, p := range v.r.plugins {
		if p.Name() == v.plugin.Name() {
			v.plugin = p
		}
	}
	return v.plugin.SetUp(context.Background(), v.Request)
}

func (v *volume) mustSetUp() {
	v.r.t.Helper()
	if err := v.setUp(); err != nil {
		v.r.t.Fatal(err)
	}
}

func (v *volume) tearDown() error { return v.plugin.TearDown(context.Background(), v.Dir) }

// has fails the test unless these are the volume's files, as pairs of path and content.
func (v *volume) has(pairs ...string) {
	v.r.t.Helper()
	want := map[string]bool{}
	for i := 0; i < len(pairs); i += 2 {
		want[pairs[i]] = true
		if got, err := os.ReadFile(filepath.Join(v.Dir, pairs[i])); err != nil || string(got) != pairs[i+1] {
			v.r.t.Errorf("%s has %q, error %v; want %q", pairs[i], got, err, pairs[i+1])
		}
	}
	entries, err := os.ReadDir(v.Dir)
	if err != nil {
		v.r.t.Error(err)
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, "..") && entry.Type() == os.ModeSymlink && !want[name] {
			v.r.t.Errorf("there is %s", name)
		}
	}
}

// mounted returns the mounts at the volume.
func (v *volume) mounted() (kinds []string, options string) {
	v.r.t.Helper()
	all, err := v.r.mounter.List()
	if err != nil {
		v.r.t.Fatal(err)
	}
	for _, point := range all {
		if point.Path == v.Dir {
			kinds, options = append(kinds, point.Type), strings.Join(point.Opts, ",")
		}
	}
	return kinds, options
}

// objects has the ConfigMaps and Secrets of one namespace.
type objects struct {
	mu       sync.Mutex
	all      map[string]any
	requests map[string]int
	fail     error
}

func (o *objects) put(kind, name string, object any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[kind+" shop/"+name] = object
}

func (o *objects) putConfigMap(name string, immutable bool, pairs ...string) {
	m := &v1.ConfigMap{Data: map[string]string{}, Immutable: &immutable}
	for i := 0; i < len(pairs); i += 2 {
		m.Data[pairs[i]] = pairs[i+1]
	}
	o.put("configmaps", name, m)
}

func (o *objects) putSecret(name string, immutable bool, pairs ...string) {
	s := &v1.Secret{Data: map[string][]byte{}, Immutable: &immutable}
	for i := 0; i < len(pairs); i += 2 {
		s.Data[pairs[i]] = []byte(pairs[i+1])
	}
	o.put("secrets", name, s)
}

func (o *objects) remove(kind, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, kind+" shop/"+name)
}

// failing makes every read fail with err; nil makes reads succeed.
func (o *objects) failing(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = err
}

func (o *objects) times(kind, name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.requests[kind+" shop/"+name]
}

func (o *objects) get(kind, namespace, name string) (any, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := kind + " " + namespace + "/" + name
	o.requests[key]++
	if object, ok := o.all[key]; ok && o.fail == nil {
		return object, nil
	}
	if o.fail != nil {
		return nil, o.fail
	}
	return nil, apierrors.NewNotFound(v1.Resource(kind), name)
}

func (o *objects) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	m, err := o.get("configmaps", namespace, name)
	if err != nil {
		return nil, err
	}
	return m.(*v1.ConfigMap), nil
}

func (o *objects) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	s, err := o.get("secrets", namespace, name)
	if err != nil {
		return nil, err
	}
	return s.(*v1.Secret), nil
}

// everyToken returns a token for every service account.
type everyToken struct{}

func (everyToken) Token(_ context.Context, pod *v1.Pod, audience string, expirationSeconds int64) (string, error) {
	if audience == "refused" {
		return "", errors.New("not for you")
	}
	return fmt.Sprintf("%s of %s for %q, %d s", hidden, pod.Name, audience, expirationSeconds), nil
}

func configMap(name string, optional bool) v1.VolumeSource {
	return v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: &optional},
	}
}

func secret(name string) v1.VolumeSource {
	return v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name, DefaultMode: ptr[int32](0o400)}}
}

func downward(path, field string) []v1.DownwardAPIVolumeFile {
	return []v1.DownwardAPIVolumeFile{{Path: path, FieldRef: &v1.ObjectFieldSelector{FieldPath: field}}}
}

func projected(sources ...v1.VolumeProjection) v1.VolumeSource {
	return v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}}
}

func tokenFor(audience string) v1.VolumeProjection {
	return v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", Audience: audience, ExpirationSeconds: ptr[int64](600)}}
}
