package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUpstreamsMockDriverOnANode has Kubernetes' mock driver on a node without an API server: a volume of it is made,
// attached, staged, published, expanded, and all of this is undone, with a kill of syncloop after each step. It is
// staged and published once. The driver refuses each call of the node at first.
func TestUpstreamsMockDriverOnANode(t *testing.T) {
	driver, volumes := withDriver(t, "../../services/syncloop/internal/storage/csi/oracle", "./mockdriver")
	var want []string
	calls := func(methods ...string) {
		t.Helper()
		want = append(want, methods...)
		awaitThat(t, "the driver is asked for "+methods[len(methods)-1], func() bool {
			return len(callsIn(t, volumes)) >= len(want)
		})
		killSyncloop(t)
	}
	// refuse has the driver refuse a method, and admit makes it succeed again after a kill of syncloop.
	refuse := func(method string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(volumes, "refuse-"+method), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(method string) {
		t.Helper()
		awaitThat(t, "the driver has refused "+method, func() bool {
			_, err := os.Stat(filepath.Join(volumes, "refused-"+method+"-e2e"))
			return err == nil
		})
		killSyncloop(t)
		if err := os.Remove(filepath.Join(volumes, "refuse-"+method)); err != nil {
			t.Fatal(err)
		}
	}
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		refuse(method)
	}
	claim := write(t, "mock.yaml", fmt.Sprintf(classClaim, "mock", "Filesystem", "8Mi"))
	t.Cleanup(func() { _, _ = node.Command(context.Background(), "delete", "-f", claim) }) // it may be deleted already
	place(t, "csi.yaml", driver)
	quartet(t, "apply", "-f", claim)
	calls("CreateVolume")
	place(t, "mock.yaml", withClaim("mock", "persistentVolumeClaim: {claimName: mock}"))
	awaitFailedMount(t, "mock", "refused by the test")
	admit("NodeStageVolume")
	admit("NodePublishVolume")
	p := await(t, "mock", "Ready", ready)
	calls("ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume")
	if info, err := os.Stat(filepath.Join(inside(t, p, "main"), "data")); err != nil || owner(info).Gid != 2000 {
		t.Errorf("the volume has %v, %v, want the group 2000", info, err)
	}
	quartet(t, "apply", "-f", write(t, "larger.yaml", fmt.Sprintf(classClaim, "mock", "Filesystem", "16Mi")))
	calls("ControllerExpandVolume", "NodeExpandVolume")
	if again := await(t, "mock", "Ready", ready); fmt.Sprint(containerIDs(again)) != fmt.Sprint(containerIDs(p)) {
		t.Error("the kills have restarted the pod")
	}
	takeAway(t, "mock.yaml")
	admit("NodeUnpublishVolume")
	admit("NodeUnstageVolume")
	awaitGone(t, "mock")
	calls("NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
	quartet(t, "delete", "-f", claim)
	calls("DeleteVolume")
	awaitThat(t, "the claim is gone", func() bool { return statusOfClaim(t, "mock") == "" })
	if diff := cmp.Diff(want, callsIn(t, volumes)); diff != "" {
		t.Errorf("the calls of the driver (-want +got):\n%s", diff)
	}
}

// callsIn returns the methods that the mock driver was called with. One after which syncloop is killed may be repeated,
// because the kill may be faster than syncloop's record of the answer.
func callsIn(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var methods []string
	for line := range strings.Lines(string(text)) {
		methods = append(methods, strings.Fields(line)[1])
	}
	return slices.CompactFunc(methods, func(a, b string) bool {
		repeatable := []string{"CreateVolume", "NodeExpandVolume", "DeleteVolume"}
		return a == b && (strings.HasPrefix(a, "Controller") || slices.Contains(repeatable, a))
	})
}
