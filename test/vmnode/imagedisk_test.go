package vmnode

import (
	"encoding/json"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// mountImages mounts the disk of images, as an administrator does before the node starts.
func mountImages(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(imagesDir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/dev/vdc", imagesDir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
}

// testImageDisk checks that images, and the layers of containers, count for their own disk, and that the Node has the
// other one.
func testImageDisk(n *node) {
	size := func(dir string) uint64 {
		n.t.Helper()
		var stat unix.Statfs_t
		if err := unix.Statfs(dir, &stat); err != nil {
			n.t.Fatal(err)
		}
		return stat.Blocks * uint64(stat.Bsize)
	}
	root, images := size(stateDir), size(imagesDir)
	if root == images {
		n.t.Fatalf("both disks have %d bytes", root)
	}
	var summary statsv1alpha1.Summary
	if err := json.Unmarshal(n.get("/stats/summary"), &summary); err != nil {
		n.t.Fatal(err)
	}
	runtime := summary.Node.Runtime
	if *summary.Node.Fs.CapacityBytes != root || *runtime.ImageFs.CapacityBytes != images ||
		*runtime.ContainerFs.CapacityBytes != images || *runtime.ImageFs.UsedBytes == 0 {
		n.t.Errorf("the disks of %d and %d bytes are %+v, %+v and %+v", root, images, summary.Node.Fs, runtime.ImageFs,
			runtime.ContainerFs)
	}
	for i := range summary.Pods {
		for _, c := range summary.Pods[i].Containers {
			if c.Rootfs == nil || *c.Rootfs.CapacityBytes != images || c.Logs == nil || *c.Logs.CapacityBytes != root {
				n.t.Errorf("the container %s of %s has the layer %+v and the logs %+v", c.Name, summary.Pods[i].PodRef.Name,
					c.Rootfs, c.Logs)
			}
		}
	}
	if disk := n.resources().Capacity["ephemeral-storage"]; uint64(disk.Value()) != root {
		n.t.Errorf("the Node has %s of disk, want %d bytes", &disk, root)
	}
}
