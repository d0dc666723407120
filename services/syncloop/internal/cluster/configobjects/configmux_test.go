package configobjects_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

// shared is the cluster of these tests.
var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// rig is a Configmux whose configmux can be replaced or missing.
type rig struct {
	t     *testing.T
	clock *testingclock.FakeClock
	mux   *configobjects.Configmux
	// claims counts the calls of ClaimsChanged.
	claims atomic.Int64
	// secrets has the arguments of SecretChanged.
	secrets  chan string
	notified chan types.UID
	mu       sync.Mutex
	source   stream.Source[*configobjects.Entry]
	err      error
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, clock: testingclock.NewFakeClock(time.Unix(1000, 0)), notified: make(chan types.UID, 100)}
	r.secrets = make(chan string, 100)
	r.err = status.Error(codes.Unavailable, "nobody listens")
	r.mux = configobjects.NewConfigmux(configobjects.ConfigmuxConfig{
		Stream: r, Clock: r.clock, Logger: slog.New(slog.DiscardHandler), Changed: func(uid types.UID) { r.notified <- uid },
		ClaimsChanged: func() { r.claims.Add(1) },
		SecretChanged: func(namespace, name string) { r.secrets <- namespace + "/" + name },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.mux.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// Subscribe implements stream.Source.
func (r *rig) Subscribe(ctx context.Context, token []byte) (stream.Subscription[*configobjects.Entry], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if status.Code(r.err) == codes.Unavailable {
		return nil, r.err
	}
	if r.err != nil {
		return refused{r.err}, nil
	}
	return r.source.Subscribe(ctx, token)
}

// refused is a subscription that ends with an error, as a gRPC stream reports one.
type refused struct{ err error }

func (s refused) Next(context.Context) (stream.Message[*configobjects.Entry], error) {
	return stream.Message[*configobjects.Entry]{}, s.err
}
func (refused) Close() {}

func (r *rig) serve(source stream.Source[*configobjects.Entry], err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.source, r.err = source, err
}

// configmux starts a configmux with these objects, whose sources are ready or not.
func (r *rig) configmux(ready bool, held ...*v1.Secret) *stream.Level[*configobjects.Entry] {
	level := stream.NewLevel[*configobjects.Entry](stream.Config{})
	r.t.Cleanup(level.Close)
	level.Put("source/file", &configobjects.Entry{Source: "file", Ready: true})
	level.Put("source/local", &configobjects.Entry{Source: "local", Ready: ready})
	for _, s := range held {
		put(level, s)
	}
	r.serve(level, nil)
	return level
}

func put(level *stream.Level[*configobjects.Entry], s *v1.Secret) {
	level.Put("Secret/shop/"+s.Name, &configobjects.Entry{Key: configobjects.Key{Kind: configobjects.Secret, Namespace: "shop", Name: s.Name}, Object: s})
}

func secret(name, value string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Data: map[string][]byte{"k": []byte(value)}}
}

// gives returns the value of a secret, or the error of Get.
func (r *rig) gives(name string) string {
	s, err := r.mux.Secret(r.t.Context(), "shop", name)
	if err != nil {
		return err.Error()
	}
	return string(s.Data["k"])
}

// eventually waits until Get returns the value, while the clock advances.
func (r *rig) eventually(name, want string) {
	r.t.Helper()
	eventually.Wait{
		Step: func() { r.clock.Step(time.Second) }, State: func() string { return "it gives " + r.gives(name) },
	}.
		That(r.t, fmt.Sprintf("secret %q gives %q", name, want), func() bool { return strings.Contains(r.gives(name), want) })
}

// wantTold waits until the pod is notified.
func (r *rig) wantNotified(want types.UID) {
	r.t.Helper()
	select {
	case got := <-r.notified:
		if got != want {
			r.t.Errorf("told %q, want %q", got, want)
		}
	case <-time.After(60 * time.Second):
		r.t.Fatalf("%q was not told", want)
	}
}

func (r *rig) wantNoneNotified() {
	r.t.Helper()
	select {
	case got := <-r.notified:
		r.t.Errorf("notified pod %q, want none", got)
	default:
	}
}

// pod returns a pod that uses secrets.
func pod(uid types.UID, secrets ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid}}
	for _, name := range secrets {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{
			Name: name, VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}},
		})
	}
	return p
}

func TestWhatIsNotKnownYetIsNotMissing(t *testing.T) {
	r := newRig(t)
	r.mux.Use(pod("u1", "db"))
	var unknown *configobjects.UnknownError
	if _, err := r.mux.Secret(t.Context(), "shop", "db"); !errors.As(err, &unknown) || apierrors.IsNotFound(err) {
		t.Errorf("before configmux has spoken: error %v", err)
	}
	level := r.configmux(false)
	r.eventually("db", `secret "db" is not known yet: it may be in what configmux has not read yet: local`)
	r.wantNotified("u1")
	level.Put("source/local", &configobjects.Entry{Source: "local", Ready: true})
	r.eventually("db", `secret "db" not found`)
	r.wantNotified("u1")
	if _, err := r.mux.Secret(t.Context(), "shop", "db"); !apierrors.IsNotFound(err) {
		t.Errorf("Secret(shop, db) error = %v, want a not-found error", err)
	}
	if _, err := r.mux.ConfigMap(t.Context(), "shop", "db"); !apierrors.IsNotFound(err) || err.Error() != `configmap "db" not found` {
		t.Errorf("ConfigMap(shop, db) error = %v, want a not-found error and %q", err, `configmap "db" not found`)
	}
	put(level, secret("db", "one"))
	r.eventually("db", "one")
	r.wantNotified("u1")
}

func TestOnlyPodsThatUseAnObjectAreNotified(t *testing.T) {
	r := newRig(t)
	level := r.configmux(true, secret("db", "one"), secret("tls", "two"))
	r.eventually("db", "one")
	r.mux.Use(pod("u1", "db"))
	r.mux.Use(pod("u2", "tls"))
	r.mux.Use(pod("u3", "db"))
	r.mux.Forget("u3")
	put(level, secret("db", "another"))
	r.wantNotified("u1")
	put(level, secret("db", "another")) // no change
	put(level, secret("none's", "x"))
	level.Delete("Secret/shop/tls")
	r.wantNotified("u2")
	r.wantNoneNotified()
	if got := r.gives("tls"); got != `secret "tls" not found` {
		t.Errorf("a secret that is gone gives %q", got)
	}
	r.mux.Use(pod("u1", "tls")) // another volume
	put(level, secret("db", "third"))
	put(level, secret("tls", "third"))
	for _, want := range []types.UID{"u1", "u2"} {
		r.wantNotified(want)
	}
	r.wantNoneNotified()
}

func TestTheLastKnownStaysWhileConfigmuxIsAwayAndUntilItHasReadEverything(t *testing.T) {
	r := newRig(t)
	level := r.configmux(true, secret("db", "one"), secret("tls", "two"))
	r.eventually("db", "one")
	r.mux.Use(pod("u1", "db"))
	r.mux.Use(pod("u2", "tls"))
	r.serve(nil, status.Error(codes.Unavailable, "it was killed"))
	level.Close()
	// Another configmux, which has not read the applied objects: one secret is changed, the other is missing.
	again := r.configmux(false, secret("db", "changed"))
	r.eventually("db", "changed")
	r.wantNotified("u1")
	if got := r.gives("tls"); got != "two" {
		t.Errorf("what configmux may not have read yet gives %q", got)
	}
	put(again, secret("db", "again"))
	r.wantNotified("u1")
	r.wantNoneNotified()
	again.Put("source/local", &configobjects.Entry{Source: "local", Ready: true})
	r.wantNotified("u2")
	if got := r.gives("tls"); got != `secret "tls" not found` {
		t.Errorf("what is gone gives %q", got)
	}
}

func TestAConfigmuxWithoutObjectsIsReportedAndRetried(t *testing.T) {
	r := newRig(t)
	r.mux.Use(pod("u1", "db"))
	r.serve(nil, status.Error(codes.Unimplemented, "this node has no config maps"))
	r.eventually("db", `secret "db": configmux has no config maps, secrets and claims`)
	r.wantNotified("u1")
	var none *configobjects.NotServedError
	if _, err := r.mux.Secret(t.Context(), "shop", "db"); !errors.As(err, &none) {
		t.Errorf("Secret(shop, db) error = %v, want a %T", err, none)
	}
	r.configmux(true, secret("db", "one"))
	r.eventually("db", "one")
}

func TestARefusalIsReported(t *testing.T) {
	r := newRig(t)
	r.serve(nil, status.Error(codes.PermissionDenied, "secrets are given to root"))
	r.eventually("db", `secret "db" is not known yet: configmux refuses them: secrets are given to root`)
}

func TestUsed(t *testing.T) {
	p := pod("u1", "v")
	p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "pull"}, {}}
	p.Spec.InitContainers = []v1.Container{{EnvFrom: []v1.EnvFromSource{
		{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "from"}}},
		{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "from"}}},
	}}}
	p.Spec.Containers = []v1.Container{{Env: []v1.EnvVar{
		{Name: "A", Value: "x"},
		{Name: "B", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "key"}}}},
		{Name: "C", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "key"}}}},
	}}}
	debug := v1.EphemeralContainerCommon{Env: []v1.EnvVar{
		{Name: "D", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{
			LocalObjectReference: v1.LocalObjectReference{Name: "key"},
		}}},
	}}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: debug}}
	p.Spec.Volumes = append(p.Spec.Volumes,
		v1.Volume{
			VolumeSource: v1.VolumeSource{
				ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "v"}},
			},
		},
		v1.Volume{VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "p"}}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "p"}}},
			{DownwardAPI: &v1.DownwardAPIProjection{}},
		}}}})
	var got []string
	for _, k := range configobjects.Used(p) {
		got = append(got, k.String())
	}
	want := []string{
		"secret shop/pull", "configmap shop/from", "secret shop/from", "configmap shop/key", "secret shop/key",
		"secret shop/v", "configmap shop/v", "secret shop/p", "configmap shop/p",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestASecretMayBeThatOfAVolume checks that the volumes of claims are told of secrets, which they may wait for.
func TestASecretMayBeThatOfAVolume(t *testing.T) {
	r := newRig(t)
	level := r.configmux(true, secret("other", "1"))
	r.eventually("other", "1")
	before := r.claims.Load()
	put(level, secret("key", "1"))
	eventually.That(t, "the volumes of claims are told", func() bool { return r.claims.Load() > before })
	level.Delete("Secret/shop/other")
	for _, want := range []string{"shop/other", "shop/key", "shop/other"} {
		if got := <-r.secrets; got != want {
			t.Errorf("told of %s, want %s", got, want)
		}
	}
}

// TestAPodUsesTheSecretOfItsInlineVolume checks that a pod is told of the secret for its inline volume of a CSI driver.
func TestAPodUsesTheSecretOfItsInlineVolume(t *testing.T) {
	r := newRig(t)
	level := r.configmux(true, secret("other", "1"))
	r.eventually("other", "1")
	p := pod("u1", "other")
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: "d", NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"},
	}}}}
	r.mux.Use(p)
	put(level, secret("key", "1"))
	r.wantNotified("u1")
	put(level, secret("key", "2"))
	r.wantNotified("u1")
	r.wantNoneNotified()
}
