package kubeadm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mock has Kubernetes' mock driver on both nodes: a volume is made, attached, staged and published on one node, and
// then on the other, where its pod moves, and is deleted. The driver refuses each call of a node at first, and syncloop
// is killed then. Each call is made once, and a node is done with the volume before the other one begins.
func (c cluster) mock(t *testing.T) {
	t.Helper()
	d := mockDriver{dir: c.share(t)}
	first, second := c.control, c.worker
	d.refuse(t, "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
	c.control.apply(t, strings.NewReplacer("SHARED", d.dir, "FIRST", first.Name).Replace(read(t, "testdata/mock.yaml")))
	d.admit(t, "NodeStageVolume", first)
	d.admit(t, "NodePublishVolume", first)
	c.control.kubectl(t, "rollout", "status", "--timeout=5m", "statefulset/mock")

	d.refuse(t, "NodeStageVolume", "NodePublishVolume")
	c.control.kubectl(t, "patch", "statefulset", "mock", "-p",
		`{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"`+second.Name+`"}}}}}`)
	d.admit(t, "NodeUnpublishVolume", first)
	d.admit(t, "NodeUnstageVolume", first)
	d.admit(t, "NodeStageVolume", second)
	d.admit(t, "NodePublishVolume", second)
	c.control.kubectl(t, "rollout", "status", "--timeout=5m", "statefulset/mock")

	c.control.kubectl(t, "delete", "statefulset/mock", "service/mock")
	c.awaitNoVolumes(t, "mock")
	for _, n := range []*node{first, second} {
		c.control.await(t, "no volume of the driver is in use on "+n.Name, func(out string) bool {
			return !strings.Contains(out, mockDriverName)
		}, "get", "node", n.Name, "-o", "jsonpath={.status.volumesInUse} {.status.volumesAttached}")
		left, err := filepath.Glob(n.Path("/var/lib/kubelet/plugins/kubernetes.io/csi/" + mockDriverName + "/*"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s has the staged volumes %q, %v; want none", n.Name, left, err)
		}
	}
	c.control.kubectl(t, "-n", "kube-system", "delete", "daemonset/mock-node", "deployment/mock-controller")
	want := []string{
		"controller CreateVolume", "controller ControllerPublishVolume",
		first.Name + " NodeStageVolume", first.Name + " NodePublishVolume",
		first.Name + " NodeUnpublishVolume", first.Name + " NodeUnstageVolume",
		"controller ControllerUnpublishVolume", "controller ControllerPublishVolume",
		second.Name + " NodeStageVolume", second.Name + " NodePublishVolume",
		second.Name + " NodeUnpublishVolume", second.Name + " NodeUnstageVolume",
		"controller ControllerUnpublishVolume", "controller DeleteVolume",
	}
	got := d.calls(t)
	// The provisioner does not wait for the end of the detachment.
	for _, calls := range [][]string{want, got} {
		slices.Sort(calls[max(0, len(calls)-2):])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the calls of the driver (-want +got):\n%s", diff)
	}
}

// mockDriverName is that of testdata/mock.yaml.
const mockDriverName = "mock.quartet.test"

// mockDriver is the mock driver with the directory that its processes share.
type mockDriver struct{ dir string }

// refuse lets the driver refuse methods.
func (d mockDriver) refuse(t *testing.T, methods ...string) {
	t.Helper()
	for _, method := range methods {
		if err := os.WriteFile(filepath.Join(d.dir, "refuse-"+method), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// admit waits until the driver of a node has refused a method, kills syncloop, and lets the driver succeed.
func (d mockDriver) admit(t *testing.T, method string, n *node) {
	t.Helper()
	each.That(t, "the driver of "+n.Name+" has refused "+method, func() bool {
		_, err := os.Stat(filepath.Join(d.dir, "refused-"+method+"-"+n.Name))
		return err == nil
	})
	n.Run(t, "sh", "-euc", `killed=
	for dir in /proc/[0-9]*; do
		if [ "$(cat "$dir/comm" 2>/dev/null)" = syncloop ]; then
			kill -9 "${dir#/proc/}"
			killed=yes
		fi
	done
	[ -n "$killed" ]`)
	if err := os.Remove(filepath.Join(d.dir, "refuse-"+method)); err != nil {
		t.Fatal(err)
	}
}

// calls returns the calls that change something: "NODE METHOD". The cluster's controllers may repeat theirs.
func (d mockDriver) calls(t *testing.T) []string {
	t.Helper()
	var calls []string
	for line := range strings.Lines(read(t, filepath.Join(d.dir, "calls"))) {
		if fields := strings.Fields(line); !strings.HasPrefix(fields[1], "List") {
			calls = append(calls, fields[0]+" "+fields[1])
		}
	}
	return slices.CompactFunc(calls, func(a, b string) bool {
		return a == b && strings.HasPrefix(a, "controller ")
	})
}
