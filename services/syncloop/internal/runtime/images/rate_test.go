package images_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
)

// TestMorePullsThanAreAllowedFail checks the kubelet's message, and that such pulls back off like other failures.
func TestMorePullsThanAreAllowedFail(t *testing.T) {
	r := newRig(t, func(cfg *images.Config) { cfg.QPS, cfg.Burst = 0.5, 2 })
	r.want("a", "registry.test/a:1", v1.PullAlways, "", "")
	r.want("b", "registry.test/b:1", v1.PullAlways, "", "")
	r.want("c", "registry.test/c:1", v1.PullAlways, images.ReasonPull, `failed to pull image "registry.test/c:1": pull QPS exceeded`)
	r.want("c", "registry.test/c:1", v1.PullAlways, images.ReasonPullBackOff, `Back-off pulling image "registry.test/c:1": ErrImagePull: `+
		`failed to pull image "registry.test/c:1": pull QPS exceeded`)
	r.want("d", "registry.test/a:1", v1.PullIfNotPresent, "", "") // the image is present
	r.clock.Step(time.Minute)
	r.want("c", "registry.test/c:1", v1.PullAlways, "", "")
}

func TestWithoutARateEveryPullIsAllowed(t *testing.T) {
	r := newRig(t)
	for range 20 {
		r.want("a", "registry.test/a:1", v1.PullAlways, "", "")
	}
}
