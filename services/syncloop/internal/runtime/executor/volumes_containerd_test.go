package executor_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/harness"
)

func givenVolumes(t *testing.T, n *node) {
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "of-the-host"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := helloPod("volumes", nil, "sleep")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4711)}
	c := &pod.Spec.Containers[0]
	for name, source := range map[string]v1.VolumeSource{
		"disk":   {EmptyDir: &v1.EmptyDirVolumeSource{}},
		"memory": {EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("1Mi"))}},
		"host":   {HostPath: &v1.HostPathVolumeSource{Path: host, Type: ptr.To(v1.HostPathDirectory)}},
		"image":  {Image: &v1.ImageVolumeSource{Reference: harness.HelloImage, PullPolicy: v1.PullNever}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	n.run(pod)
	inside := filepath.Join(n.proc(pod, "c0-sleep"), "root")
	// the root of a tmpfs has the sticky bit
	for name, sticky := range map[string]fs.FileMode{"disk": 0, "memory": fs.ModeSticky} {
		info, err := os.Stat(filepath.Join(inside, name))
		if err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|sticky|0o777 || info.Sys().(*syscall.Stat_t).Gid != 4711 { //nolint:forcetypeassert // it is Linux
			t.Errorf("%s: Stat() = %v, %v, want Mode %v and Gid 4711", name, info, err, fs.ModeDir|fs.ModeSetgid|sticky|0o777)
		}
	}
	if err := os.WriteFile(filepath.Join(inside, "memory", "large"), make([]byte, 2<<20), 0o600); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a value larger than the memory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(inside, "host", "of-the-host")); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Join(inside, "image")); err != nil || len(entries) == 0 {
		t.Errorf("the image has %v, %v", entries, err)
	}
	if err := os.WriteFile(filepath.Join(inside, "image", "new"), nil, 0o600); err == nil {
		t.Error("the image can be written to")
	}
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	memory := filepath.Join(n.config.RootDir, "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "memory")
	var stat unix.Statfs_t
	if err := unix.Statfs(memory, &stat); err != nil || stat.Type != unix.TMPFS_MAGIC {
		t.Errorf("before the pod is cleaned up: type %x, %v", stat.Type, err)
	}
	if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(n.config.RootDir, "pods", string(pod.UID))); !os.IsNotExist(err) {
		t.Errorf("after the pod: %v", err)
	}
	if _, err := os.Stat(filepath.Join(host, "of-the-host")); err != nil {
		t.Errorf("the path of the host: %v", err)
	}
}
