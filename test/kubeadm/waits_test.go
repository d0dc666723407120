package kubeadm

import (
	"strings"
	"testing"
)

// waits checks what users of the worker see of volumes that wait: of a claim for one pod, and of a pod that is deleted
// by force while the driver is not there. Its volumes are given up only when the driver is there again.
func (c cluster) waits(t *testing.T) {
	t.Helper()
	manifest := func(file string) string {
		return strings.ReplaceAll(read(t, "testdata/"+file), "NODE", c.worker.Name)
	}
	c.control.apply(t, manifest("one-pod.yaml"))
	c.control.kubectl(t, "wait", "--for=condition=Ready", "--timeout=5m", "pod/first")
	c.control.apply(t, manifest("second-pod.yaml"))
	c.worker.awaitVolume(t, "second", "data", "not in place yet", "end of the other pod with this volume")

	c.setDriversNodes(t, `{"none": "none"}`)
	c.control.await(t, "the driver is not on the worker", func(out string) bool { return out == "" },
		"get", "csinode", c.worker.Name, "-o", "jsonpath={.spec.drivers[*].name}")
	c.control.kubectl(t, "delete", "pod", "first", "--force", "--grace-period=0")
	c.worker.awaitVolume(t, "first", "scratch", "being removed", "CSI driver dirs.quartet.test")
	inUse := func(n int) func(string) bool {
		return func(out string) bool { return strings.Count(out, "dirs.quartet.test^") == n }
	}
	of := []string{"get", "node", c.worker.Name, "-o", "jsonpath={.status.volumesInUse}"}
	before := c.control.kubectl(t, of...)

	c.setDriversNodes(t, "null")
	c.control.kubectl(t, "wait", "--for=condition=Ready", "--timeout=5m", "pod/second")
	c.control.kubectl(t, "delete", "pod/second", "persistentvolumeclaim/only")
	c.control.await(t, "the two volumes are not in use on the worker any more, of "+before,
		inUse(strings.Count(before, "dirs.quartet.test^")-2), of...)
}

// setDriversNodes sets the node selector of the driver's pods.
func (c cluster) setDriversNodes(t *testing.T, selector string) {
	t.Helper()
	c.control.kubectl(t, "-n", "kube-system", "patch", "daemonset", "csi-node", "-p",
		`{"spec": {"template": {"spec": {"nodeSelector": `+selector+`}}}}`)
}

// awaitVolume waits until 'quartet get volumes' shows a pod's volume on its node with a state, and what it waits for.
func (n *node) awaitVolume(t *testing.T, pod, volume, state, waitsFor string) {
	t.Helper()
	var out string
	each.That(t, pod+"'s volume "+volume+" is "+state+" and waits for the "+waitsFor, func() bool {
		var err error
		out, err = n.Try(t, "env", "QUARTET_STATE_DIR=/var/lib/kubelet/quartet", "quartet", "get", "volumes", pod)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, volume+" ") && strings.Contains(line, " "+state+" ") && strings.Contains(line, " "+waitsFor+" ") {
				return err == nil
			}
		}
		return false
	})
	t.Logf("%s", out)
}
