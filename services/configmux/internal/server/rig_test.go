package server_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sourceName is the only source of a rig.
const sourceName = "file"

// rig is a mux with one source that the test changes, served on a unix socket as in the process.
type rig struct {
	tb       testing.TB
	desired  *mux.Mux
	registry *prometheus.Registry
	address  string
	// pods are the pods of the source, and at is the index of the next one to change.
	pods []source.Pod
	at   int
	// changes counts the changes; each makes an image that no pod has had before.
	changes int
}

// fileSource sends nothing by itself.
type fileSource struct{}

func (fileSource) Name() string                           { return sourceName }
func (fileSource) Target() string                         { return "/manifests" }
func (fileSource) Run(context.Context, source.Sink) error { return nil }

// newRig serves a number of pods until the test ends.
func newRig(tb testing.TB, pods int) *rig {
	tb.Helper()
	health := rpc.NewHealth()
	r := &rig{tb: tb, registry: prometheus.NewRegistry(), address: "unix://" + filepath.Join(tb.TempDir(), "s.sock")}
	r.desired = mux.New(mux.Config{
		Sources: []source.Source{
			fileSource{},
		},
		Health:  health,
		Clock:   clock.RealClock{},
		Tracer:  noop.NewTracerProvider().Tracer(""),
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: mux.NewMetrics(r.registry),
	})
	for i := range pods {
		r.pods = append(r.pods, pod(fmt.Sprintf("pod-%05d", i), 0, image(0)))
	}
	r.desired.Set(sourceName, source.Reading{Pods: r.pods})

	ctx, cancel := context.WithCancel(context.Background())
	opening, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	close(opening)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: r.address, Register: server.New(server.Config{Desired: r.desired, Opening: opening}).Register,
			Health: health, Ready: func() { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
		r.desired.Close()
	})
	return r
}

// pod is one of the size that pods usually have, a little more than 1 KiB on the wire. Another incarnation has another
// UID.
func pod(name string, incarnation int, image string) source.Pod {
	container := func(name string) v1.Container {
		c := v1.Container{
			Name:    name,
			Image:   image,
			Command: []string{"/bin/server", "--port=8080"},
			Resources: v1.ResourceRequirements{
				Limits: v1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
			},
			VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}},
			Ports:        []v1.ContainerPort{{ContainerPort: 8080, Protocol: v1.ProtocolTCP}},
		}
		for i := range 10 {
			c.Env = append(c.Env, v1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: "of a usual length"})
		}
		return c
	}
	return source.Pod{Path: "/manifests/" + name + ".yaml", Pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default",
			Name:      name,
			UID:       types.UID(fmt.Sprintf("%s-%d", name, incarnation)),
		},
		Spec: v1.PodSpec{
			NodeName: "node", Containers: []v1.Container{container("main"), container("side")},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}},
		},
	}}
}

// image is one of a length that is the same for all.
func image(version int) string { return fmt.Sprintf("registry.example/app:%08d", version) }

// next creates the next version of the next pod, and returns it and the previous one. A replaced pod has another UID.
func (r *rig) next(replaced bool) (before, after source.Pod) {
	r.at = (r.at + 1) % len(r.pods)
	r.changes++
	incarnation := 0
	if replaced {
		incarnation = r.changes
	}
	before = r.pods[r.at]
	after = pod(before.Name, incarnation, image(r.changes))
	if !replaced {
		after.UID = before.UID
	}
	r.pods[r.at] = after
	return before, after
}

// update changes one pod, and gives that pod alone.
func (r *rig) update() source.Pod {
	_, after := r.next(false)
	r.desired.Set(sourceName, source.Reading{Op: podset.Update, Pods: []source.Pod{after}})
	return after
}

// replace removes one pod and adds another one with its name.
func (r *rig) replace() source.Pod {
	before, after := r.next(true)
	r.desired.Set(sourceName, source.Reading{Op: podset.Remove, Pods: []source.Pod{before}})
	r.desired.Set(sourceName, source.Reading{Op: podset.Add, Pods: []source.Pod{after}})
	return after
}

// subscriber is one subscription on a connection of its own.
type subscriber struct {
	stream grpc.ServerStreamingClient[configv1.WatchPodUpdatesResponse]
	// held has the bytes of each pod with a message of its own, and messages counts all messages.
	held     map[string][]byte
	messages int
}

// subscribe begins a subscription, which ends with ctx.
func (r *rig) subscribe(ctx context.Context, mode configv1.Mode) *subscriber {
	r.tb.Helper()
	conn, err := rpc.Dial(r.address)
	if err != nil {
		r.tb.Fatal(err)
	}
	r.tb.Cleanup(func() {
		if err := conn.Close(); err != nil {
			r.tb.Error(err)
		}
	})
	out, err := configv1.NewConfigServiceClient(conn).
		WatchPodUpdates(ctx, &configv1.WatchPodUpdatesRequest{Mode: mode}, grpc.WaitForReady(true))
	if err != nil {
		r.tb.Fatal(err)
	}
	return &subscriber{stream: out, held: map[string][]byte{}}
}

// receive takes the next message.
func (s *subscriber) receive() (*configv1.WatchPodUpdatesResponse, error) {
	m, err := s.stream.Recv()
	if err != nil {
		return nil, err
	}
	s.messages++
	switch {
	case m.GetFrame().GetRemoved():
		delete(s.held, m.GetFrame().GetKey())
	case m.GetPod() != nil:
		s.held[m.GetFrame().GetKey()] = m.GetPod().GetPod()
	}
	return m, nil
}

// sync reads until the marker of a complete state.
func (s *subscriber) sync() error {
	for {
		m, err := s.receive()
		if err != nil || m.GetFrame().GetKind() == streamv1.Kind_KIND_SYNCED {
			return err
		}
	}
}

// see reads until a message has a version of a pod.
func (s *subscriber) see(version source.Pod) error {
	for {
		m, err := s.receive()
		if err != nil || has(m.GetPod(), version) ||
			slices.ContainsFunc(m.GetSet().GetPods(), func(u *configv1.PodUpdate) bool { return has(u, version) }) {
			return err
		}
	}
}

// has tells whether an update is that of a version of a pod. No two versions have the same image.
func has(u *configv1.PodUpdate, version source.Pod) bool {
	return bytes.Contains(u.GetPod(), []byte(version.Spec.Containers[0].Image))
}
