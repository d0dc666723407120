package deviceplugins_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/require"
)

// TestTheSamplePluginOfKubernetes runs Kubernetes' sample device plugin: it registers, again after a restart of
// syncloop, and leaves.
func TestTheSamplePluginOfKubernetes(t *testing.T) {
	require.Root(t, "the plugin has a mount namespace of its own")
	program := filepath.Join(harness.BinDir(t), "tools", "sample-device-plugin")
	_, err := os.Stat(program)
	require.NoError(t, err)
	const name = "example.com/resource"
	r := newRig(t)
	eventually.That(t, "registrations are served", func() bool {
		_, err := os.Stat(filepath.Join(r.dir(), "kubelet.sock"))
		return err == nil
	})
	// It knows only /var/lib/kubelet.
	cmd := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs none /var/lib && mkdir /var/lib/kubelet &&
mount --bind "$0" /var/lib/kubelet && exec "$1"`, r.root, program)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	defer func() {
		if t.Failed() {
			t.Logf("the plugin wrote\n%s", output.String())
		}
	}()
	r.amounts(name, 2, 2)
	one := v1.ResourceList{name: resource.MustParse("1")}
	web := podtest.Pod("web", podtest.Container(nil, one))
	must(t, r.Allocate(t.Context(), web))
	given, err := r.Give(t.Context(), web, &web.Spec.Containers[0])
	must(t, err)
	if len(given.Mounts) != 1 || given.Mounts[0].GetHostPath() != "/tmp/Dev-1" {
		t.Errorf("the container gets %v, want the mount /tmp/Dev-1", given.Mounts)
	}
	r.restart()
	eventually.Wait{Patience: time.Minute, Interval: 50 * time.Millisecond}.That(t, "it registers again", func() bool {
		return r.Amounts()[name].Allocatable == 2
	})
	must(t, r.Allocate(t.Context(), podtest.Pod("next", podtest.Container(nil, one))))
	if first, second := r.Held("web", "main")[name], r.Held("next", "main")[name]; len(first) != 1 || len(second) != 1 ||
		first[0].ID != "Dev-1" || second[0].ID != "Dev-2" {
		t.Errorf("the pods have %v and %v, want Dev-1 and Dev-2", first, second)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	r.amounts(name, 2, 0)
}
