package deviceplugins_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/test/eventually"
)

// listless is a plugin whose ListAndWatch may fail at once.
type listless struct {
	plugin
	fails atomic.Bool
}

func (p *listless) ListAndWatch(
	e *pluginapi.Empty, out grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	if p.fails.Load() {
		return errors.New("no devices today")
	}
	return p.plugin.ListAndWatch(e, out)
}

// mute is a plugin that hangs when it is asked for its options.
type mute struct {
	plugin
	asked chan struct{}
}

func (m *mute) GetDevicePluginOptions(
	ctx context.Context, _ *pluginapi.Empty,
) (*pluginapi.DevicePluginOptions, error) {
	m.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestAPluginThatHangsAtItsRegistrationDelaysNoOther: the registration lasts as long as the plugin waits for it, and
// the plugin is not registered.
func TestAPluginThatHangsAtItsRegistrationDelaysNoOther(t *testing.T) {
	r := newRig(t)
	eventually.That(t, "registrations are served", func() bool { return r.register("cpu", "none.sock", "v1beta1") != nil })
	m := &mute{asked: make(chan struct{}, 1)}
	r.serve(m, "mute.sock")
	conn, err := grpc.NewClient("unix://"+filepath.Join(r.dir(), "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	done := make(chan error, 1)
	go func() {
		_, err := pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
			Version: pluginapi.Version, ResourceName: "example.com/mute", Endpoint: "mute.sock",
		})
		done <- err
	}()
	<-m.asked
	r.plug(&plugin{}, gpu, "gpu.sock", "a")
	must(t, r.Allocate(t.Context(), pod("web", "1")))
	giveUp()
	if err := <-done; err == nil {
		t.Error("a plugin that does not answer is registered")
	}
	eventually.That(t, "the failure is logged", func() bool {
		return strings.Contains(r.log.String(), "failed to get device plugin options")
	})
	if _, known := r.Amounts()["example.com/mute"]; known {
		t.Error("the resource of a plugin that is not registered is on the node")
	}
}

// TestAPluginWithoutAListHasNoResource: as in the kubelet, a resource is on the node when its devices are reported for
// the first time. Until then it is one of the cluster.
func TestAPluginWithoutAListHasNoResource(t *testing.T) {
	r := newRig(t)
	p := &plugin{silent: make(chan struct{})}
	p.set(nil, healthy("a")...)
	r.serve(p, "gpu.sock")
	must(t, r.register(gpu, "gpu.sock", pluginapi.Version))
	if _, known := r.Amounts()[gpu]; known || r.Owns(gpu) || r.Needs(pod("web", "1")) {
		t.Error("a resource without a list of devices is on the node")
	}
	close(p.silent)
	r.amounts(gpu, 1, 1)
	if !r.Needs(pod("web", "1")) {
		t.Error("a pod gets no device of the resource")
	}
}

// TestAPluginWhoseListFailsHasAResourceOfZero: as in the kubelet, the resource of a plugin whose list fails at once is
// on the node, without a device, and the plugin is not asked again until it registers.
func TestAPluginWhoseListFailsHasAResourceOfZero(t *testing.T) {
	r := newRig(t)
	p := &listless{}
	p.fails.Store(true)
	p.set(nil, healthy("a")...)
	r.serve(p, "gpu.sock")
	must(t, r.register(gpu, "gpu.sock", pluginapi.Version))
	eventually.That(t, "the node has the resource", func() bool {
		amounts, known := r.Amounts()[gpu]
		return known && amounts == allocation.Amounts{}
	})
	if err := r.Allocate(t.Context(), pod("web", "1")); err == nil {
		t.Error("a pod gets a device of it")
	}
	p.fails.Store(false)
	must(t, r.register(gpu, "gpu.sock", pluginapi.Version))
	r.amounts(gpu, 1, 1)
}

// TestAListThatIsTooLongEndsThePlugin: as in the kubelet, a message of more than 4 MiB ends the stream. What pods have,
// they keep.
func TestAListThatIsTooLongEndsThePlugin(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
	must(t, r.Allocate(t.Context(), pod("web", "1")))
	var ids []string
	for i := range 5000 {
		ids = append(ids, fmt.Sprintf("%d-%s", i, strings.Repeat("x", 1000)))
	}
	p.set(nil, healthy(ids...)...)
	r.amounts(gpu, 2, 0)
	eventually.That(t, "the log says why", func() bool {
		log := r.log.String()
		return strings.Contains(log, "has ended its list of devices") && strings.Contains(log, "larger than max")
	})
	if r.devices("web") != "a" {
		t.Errorf("the running pod has %q, want a", r.devices("web"))
	}
}

// TestOddLists: devices without an ID and twice the same one are what the kubelet makes of them: one device for each
// ID, of which the last report counts. IDs that change leave running pods their own.
func TestOddLists(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
	must(t, r.Allocate(t.Context(), pod("web", "2")))
	p.set(nil, healthy("", "", "c", "-c", "-d", "d")...)
	r.amounts(gpu, 3, 2) // the one without an ID, c, and d; c is unhealthy
	p.set(nil, healthy("e", "f")...)
	r.amounts(gpu, 2, 2)
	must(t, r.Allocate(t.Context(), pod("next", "2")))
	if web, next := r.devices("web"), r.devices("next"); web != "a b" || next != "e f" {
		t.Errorf("the pods have %q and %q, want a b and e f", web, next)
	}
	web := pod("web", "2")
	if err := r.Ready(web); err == nil || !strings.Contains(err.Error(), "no longer healthy") {
		t.Errorf("a new sandbox of a pod whose devices are gone: %v", err)
	}
	p.set(nil, healthy("a", "b")...)
	r.amounts(gpu, 2, 2)
	eventually.That(t, "its devices are back", func() bool { return r.Ready(web) == nil })
	if err := r.Allocate(t.Context(), pod("other", "1")); err == nil {
		t.Error("a device of a running pod was given to another one")
	}
}
