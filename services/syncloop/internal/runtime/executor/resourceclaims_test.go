package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// claimed are the resource claims of a pod.
type claimed struct {
	fails    error
	prepared int
	released []types.UID
}

func (c *claimed) Prepare(context.Context, *v1.Pod) error {
	c.prepared++
	return c.fails
}

func (*claimed) Annotation(uid types.UID) (string, error) { return "claims of " + string(uid), nil }

func (*claimed) Devices(*v1.Pod, *v1.Container) ([]string, error) {
	return []string{"example.com/nic=x", "example.com/gpu=a"}, nil
}

func (*claimed) Pods() []types.UID { return []types.UID{"gone"} }

func (c *claimed) Release(_ context.Context, uid types.UID) error {
	c.released = append(c.released, uid)
	return c.fails
}

// TestAPodGetsTheDevicesOfItsClaims before those of device plugins, and its claims are prepared for its sandbox alone.
func TestAPodGetsTheDevicesOfItsClaims(t *testing.T) {
	c := &claimed{fails: errors.New("DRA driver gpu is not registered")}
	events := &recordedEvents{}
	n := newNode(t, func(cfg *executor.Config) { cfg.ResourceClaims, cfg.Devices, cfg.Events = c, &gpus{}, events })
	pod := newPod("a")
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if !errors.As(err, new(*executor.ClaimsError)) || !errors.Is(result.SandboxError, c.fails) {
		t.Errorf("without its claims, a pod has %v", err)
	}
	if got := events.take(); !strings.Contains(got, "Warning FailedPrepareDynamicResources [] Failed to prepare dynamic resources: "+
		c.fails.Error()) {
		t.Errorf("the events are %s", got)
	}
	c.fails = nil
	if _, err := n.manager.SyncPod(n.ctx, pod, nil); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, device := range n.created(pod, "a").GetCDIDevices() {
		names = append(names, device.GetName())
	}
	if want := []string{"example.com/nic=x", "example.com/gpu=a"}; !slices.Equal(names, want) {
		t.Errorf("the CDI devices are %v, want %v", names, want)
	}
	observed := n.observe(pod)
	if got := observed.GetSandboxes()[0].GetAnnotations()[podlabels.Claims]; got != "claims of "+string(pod.UID) {
		t.Errorf("the sandbox has the claims %q", got)
	}
	if _, err := n.manager.SyncPod(n.ctx, pod, observed); err != nil || c.prepared != 2 {
		t.Errorf("the claims were prepared %d times, %v", c.prepared, err)
	}
	c.fails = errors.New("busy")
	if err := n.manager.ReleasePod(n.ctx, pod); !errors.Is(err, c.fails) || !errors.As(err, new(*executor.ClaimsError)) {
		t.Errorf("a pod whose claims cannot be given back: %v", err)
	}
	c.fails = nil
	if err := n.manager.ReleasePod(n.ctx, pod); err != nil || len(c.released) != 2 {
		t.Errorf("released are %v, %v", c.released, err)
	}
	left, err := n.manager.Leftovers()
	if err != nil || !slices.ContainsFunc(left, func(p *v1.Pod) bool { return p.UID == "gone" }) {
		t.Errorf("left over are %v, %v, want the pod gone, which has claims", left, err)
	}
}
