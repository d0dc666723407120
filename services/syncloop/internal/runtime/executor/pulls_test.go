package executor_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/registry"
)

// TestAPullThatHangsDelaysNoOtherPod runs on a real runtime. With serial pulls no pod with a present image waits, with
// parallel pulls no other pod at all. The waiting pod can be stopped.
func TestAPullThatHangsDelaysNoOtherPod(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	containerd := harness.StartContainerd(t)
	reg := registry.Start(t, filepath.Join(harness.BinDir(t), "images", "hello.tar"))
	for name, serial := range map[string]bool{"serial": true, "parallel": false} {
		t.Run(name, func(t *testing.T) {
			n := connect(t, containerd.Endpoint, func(c *executor.Config) { c.Kubelet.SerializeImagePulls = ptr.To(serial) })
			pulling := func(repository string) *v1.Pod {
				pod := helloPod(name+"-"+repository, nil, "sleep")
				c := &pod.Spec.Containers[0]
				c.Image, c.ImagePullPolicy = reg.Image(name+"/"+repository), v1.PullIfNotPresent
				return pod
			}
			hangs := pulling("hangs")
			reg.Break(name+"/hangs", registry.Stuck)
			ctx, stop := context.WithCancel(n.ctx)
			defer stop()
			ended := make(chan error, 1)
			go func() {
				_, err := n.manager.SyncPod(ctx, hangs, &lifecyclev1.PodStatus{Uid: string(hangs.UID)})
				ended <- err
			}()
			eventually.That(t, "the pull hangs", func() bool { return reg.Waiting(name+"/hangs") > 0 })

			others := []*v1.Pod{helloPod(name+"-present", nil, "sleep")}
			if !serial {
				others = append(others, pulling("comes"))
			}
			for _, pod := range others {
				n.sync(pod)
				if got := n.describe(pod); !strings.Contains(got, "c0-sleep-0:running") {
					t.Errorf("beside a pull that hangs pod %s is %s, want text with %q", pod.Name, got, "c0-sleep-0:running")
				}
			}
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the pod that was stopped ended with %v, want %v", err, context.Canceled)
			}
			eventually.That(t, "the pull is given up", func() bool { return reg.Waiting(name+"/hangs") == 0 })
			reg.Break(name+"/hangs", registry.None)
			n.sync(hangs)
			if got := n.describe(hangs); !strings.Contains(got, "c0-sleep-0:running") {
				t.Errorf("the pod whose image arrives late is %s, want text with %q", got, "c0-sleep-0:running")
			}
		})
	}
}
