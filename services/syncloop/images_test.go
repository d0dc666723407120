package syncloop

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/utils/ptr"
)

// TestAnImageOfAPrivateRegistryIsPulled checks that credentials from config.json in the root directory are used.
func TestAnImageOfAPrivateRegistryIsPulled(t *testing.T) {
	const image = "private.test/app:1"
	m := newMachine(t)
	m.cri.Protect(image, "puller", "pull-secret")
	if err := os.MkdirAll(m.cfg.RootDir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := `{"auths":{"private.test":{"username":"puller","password":"pull-secret"}}}`
	if err := os.WriteFile(filepath.Join(m.cfg.RootDir, "config.json"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	defer m.start()()
	pod := newPod("u1", "web", "main")
	pod.Spec.Containers[0].Image = image
	m.put(pod)
	m.eventually("the pod is ready", m.ready("u1"))
}

// TestUnusedImagesAreRemoved checks the image garbage collection above the high threshold.
func TestUnusedImagesAreRemoved(t *testing.T) {
	const unused = "example.test/unused:1"
	m := newMachine(t)
	m.cri.AddImage(unused, 1<<40)
	m.cri.Pin(testImage)
	m.cfg.Kubelet.ImageGCHighThresholdPercent = ptr.To[int32](1)
	m.cfg.Kubelet.ImageGCLowThresholdPercent = ptr.To[int32](0)
	m.cfg.Kubelet.ImageMinimumGCAge.Duration = -1 // makes an image collectable at its first observation
	defer m.start()()
	m.eventually("the image is gone", func() bool { return !slices.Contains(m.cri.Images(), unused) })
	m.wantMetrics("its removal is counted", map[string]float64{"kubelet_image_garbage_collected_total reason=space": 1})
	m.put(newPod("u1", "web", "main"))
	m.eventually("a pod of an image that was kept is ready", m.ready("u1"))
}
