package kubeadm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// storage checks that stateful sets keep their data: on volumes of a CSI driver with Kubernetes' attacher and resizer,
// and on directories of local-path-provisioner; and which calls Kubernetes' mock driver gets.
func (c cluster) storage(t *testing.T) {
	t.Helper()
	c.csi(t)
	t.Run("storage", func(t *testing.T) { // both mostly wait
		t.Run("local-path-provisioner", func(t *testing.T) {
			t.Parallel()
			c.localPath(t)
		})
		t.Run("mock driver", func(t *testing.T) {
			t.Parallel()
			c.mock(t)
		})
	})
	if t.Failed() {
		t.FailNow()
	}
}

// share returns a directory that both nodes have.
func (c cluster) share(t *testing.T) string {
	t.Helper()
	shared, err := os.MkdirTemp("/srv", "quartet-volumes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(shared); err != nil {
			t.Error(err)
		}
	})
	for _, n := range []*node{c.control, c.worker} {
		// The root of a machine is mounted read-only.
		n.Run(t, "mount", "--bind", shared, shared)
		n.Run(t, "mount", "-o", "remount,bind,rw", shared)
	}
	return shared
}

func (c cluster) csi(t *testing.T) {
	t.Helper()
	shared := c.share(t)
	for _, n := range []*node{c.control, c.worker} {
		// The /dev of a machine has no loop devices.
		n.Run(t, "sh", "-euc", "mknod /dev/loop-control c 10 237; for i in $(seq 0 31); do mknod /dev/loop$i b 7 $i; done")
	}
	c.control.apply(t, strings.ReplaceAll(read(t, "testdata/csi.yaml"), "SHARED", shared))
	for _, n := range []*node{c.control, c.worker} {
		c.control.await(t, "the driver is registered on "+n.Name, func(out string) bool {
			return out == "dirs.quartet.test "+n.Name+" [\"quartet.test/zone\"] 20 a"
		}, "get", "csinode,node", n.Name, "-o", `jsonpath={.items[0].spec.drivers[0].name} {.items[0].spec.drivers[0].nodeID} `+
			`{.items[0].spec.drivers[0].topologyKeys} {.items[0].spec.drivers[0].allocatable.count} {.items[1].metadata.labels.quartet\.test/zone}`)
	}
	c.control.apply(t, strings.ReplaceAll(read(t, "testdata/claims.yaml"), "CLASS", "dirs"))
	c.control.kubectl(t, "rollout", "status", "--timeout=5m", "statefulset/dirs")
	if owner := c.control.kubectl(t, "exec", "dirs-0", "--", "stat", "-c", "%g", "/data"); owner != "4242" {
		t.Errorf("the volume belongs to the group %s, want the fsGroup 4242", owner)
	}
	c.move(t, "dirs-0")
	c.expand(t, "data-dirs-1", "dirs-1")
	c.rawBlock(t)
	c.waits(t)
	c.control.kubectl(t, "scale", "statefulset/dirs", "--replicas=0")
	c.control.kubectl(t, "delete", "statefulset/dirs", "service/dirs")
	c.control.await(t, "the persistent volumes are deleted", func(out string) bool { return out == "" },
		"get", "persistentvolumes", "-o", "name")
	for _, n := range []*node{c.control, c.worker} {
		c.control.await(t, "no volume of "+n.Name+" is in use", func(out string) bool { return out == "" },
			"get", "node", n.Name, "-o", "jsonpath={.status.volumesInUse}")
		mounts := n.Run(t, "cat", "/proc/self/mounts")
		for _, part := range []string{"kubernetes.io~csi", "globalmount"} {
			if strings.Contains(mounts, part) {
				t.Errorf("%s has mounts of volumes that are deleted:\n%s", n.Name, mounts)
			}
		}
	}
	c.control.kubectl(t, "-n", "kube-system", "delete", "daemonset/csi-node", "deployment/csi-controller")
	if left, err := filepath.Glob(filepath.Join(shared, "volumes", "*")); err != nil || len(left) > 0 {
		t.Errorf("the driver has the volumes %q, %v; want none", left, err)
	}
}

// move checks that a pod that is started on another node has its volume there.
func (c cluster) move(t *testing.T, pod string) {
	t.Helper()
	before := c.control.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
	c.control.kubectl(t, "cordon", before)
	c.control.kubectl(t, "delete", "pod", pod)
	c.control.await(t, pod+" is Ready on the other node", func(out string) bool {
		node, ready, _ := strings.Cut(out, " ")
		return node != "" && node != before && ready == "True"
	}, "get", "pod", pod, "-o", `jsonpath={.spec.nodeName} {.status.conditions[?(@.type=="Ready")].status}`)
	c.control.kubectl(t, "uncordon", before)
	starts := c.control.kubectl(t, "exec", pod, "--", "cat", "/data/starts")
	if strings.Count(starts, "a start of "+pod) != 2 || strings.Count(starts, "\n") != 1 {
		t.Errorf("the volume of %s has %q, want a line of each start", pod, starts)
	}
}

// expand checks that a volume grows while a pod uses it, and that the pod does not notice.
func (c cluster) expand(t *testing.T, claim, pod string) {
	t.Helper()
	c.control.kubectl(t, "patch", "persistentvolumeclaim", claim, "-p", `{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}`)
	c.control.await(t, claim+" has its new size", func(out string) bool { return out == "32Mi" },
		"get", "persistentvolumeclaim", claim, "-o", `jsonpath={.status.capacity.storage} {.status.conditions[?(@.type=="FileSystemResizePending")].status}`)
	restarts := c.control.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
	if restarts != "0" {
		t.Errorf("%s restarted %s times while its volume grew", pod, restarts)
	}
}

// rawBlock checks that a pod reads what it has written to a block device.
func (c cluster) rawBlock(t *testing.T) {
	t.Helper()
	c.control.apply(t, read(t, "testdata/block.yaml"))
	c.control.kubectl(t, "wait", "--for=condition=Ready", "--timeout=5m", "pod/raw")
	got := c.control.kubectl(t, "exec", "raw", "--", "sh", "-c",
		"echo written | dd of=/dev/data bs=512 seek=8 conv=sync,fsync 2>/dev/null && dd if=/dev/data bs=512 skip=8 count=1 2>/dev/null && blockdev --getsize64 /dev/data")
	if !strings.HasPrefix(got, "written\n") || !strings.HasSuffix(got, "16777216") {
		t.Errorf("the block device has %q, want what was written and a size of 16 MiB", got)
	}
	c.control.kubectl(t, "delete", "pod/raw", "persistentvolumeclaim/raw")
}

// localPath checks that directories of a node are made, used and removed.
func (c cluster) localPath(t *testing.T) {
	t.Helper()
	c.control.apply(t, read(t, "testdata/local-path.yaml"))
	c.control.apply(t, strings.ReplaceAll(read(t, "testdata/claims.yaml"), "CLASS", "local-path"))
	c.control.kubectl(t, "rollout", "status", "--timeout=5m", "statefulset/local-path")
	c.control.kubectl(t, "delete", "pod", "local-path-0", "local-path-1")
	c.control.kubectl(t, "rollout", "status", "--timeout=5m", "statefulset/local-path")
	for _, pod := range []string{"local-path-0", "local-path-1"} {
		c.control.await(t, pod+" has its data again", func(out string) bool { return strings.Count(out, "a start of "+pod) == 2 },
			"exec", pod, "--", "cat", "/data/starts")
	}
	c.control.kubectl(t, "delete", "statefulset/local-path", "service/local-path")
	c.awaitNoVolumes(t, "local-path")
	c.control.kubectl(t, "delete", "namespace", "local-path-storage")
}

// awaitNoVolumes waits until there is no persistent volume of a storage class.
func (c cluster) awaitNoVolumes(t *testing.T, class string) {
	t.Helper()
	c.control.await(t, "the persistent volumes of "+class+" are deleted", func(out string) bool { return out == "" },
		"get", "persistentvolumes", "-o", `jsonpath={.items[?(@.spec.storageClassName=="`+class+`")].metadata.name}`)
}
