package faults

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

func lower(method string) string { return strings.ToLower(method) }

// withHook adds a postStart hook to the container, for an additional call.
func withHook(p *v1.Pod) {
	hook := &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/hello", "init"}}}
	p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: hook}
}

// withImage sets the image of the container.
func withImage(image string, policy v1.PullPolicy) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
	}
}

// withArgs sets the arguments of the container's program.
func withArgs(args ...string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Args = args }
}

// withCommand sets the program of the container.
func withCommand(command ...string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Command, p.Spec.Containers[0].Args = command, nil }
}

// tag adds a name to the image of the example program in the runtime, until the test ends.
func tag(t *testing.T, image string) string {
	t.Helper()
	ctr := func(ctx context.Context, args ...string) {
		args = append([]string{"--address", node.Layout.RuntimeSocket(), "--namespace", "k8s.io", "images"}, args...)
		if out, err := exec.CommandContext(ctx, filepath.Join(livenode.Bin(), "ctr"), args...).CombinedOutput(); err != nil {
			t.Errorf("ctr %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	ctr(t.Context(), "tag", livenode.Image, image)
	t.Cleanup(func() { ctr(context.Background(), "rm", image) })
	awaitThat(t, "the runtime knows the image "+image, func() bool {
		answer, err := node.images.ImageStatus(t.Context(),
			&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		return err == nil && answer.GetImage() != nil
	})
	return image
}

// watch inspects a Ready pod until the returned function is called. That fails the test if the pod ever was not Ready.
func watch(t *testing.T, name string) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var noticed string
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil && noticed == "" {
			if p, err := pod(ctx, name); err == nil && !livenode.Ready(p) {
				noticed = describe(t, p)
			}
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
	})
	return func() {
		t.Helper()
		cancel()
		watching.Wait()
		if noticed != "" {
			t.Errorf("pod %s was not Ready for a moment: %s", name, noticed)
		}
	}
}

// isReady reports whether the node reports that it is Ready.
func (n *faultyNode) isReady(ctx context.Context) bool {
	out, err := n.Command(ctx, "get", "node")
	return err == nil && !strings.Contains(out, "NotReady")
}
