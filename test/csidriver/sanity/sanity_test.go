package sanity_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/require"
)

// TestTheDriverOfTheTestsIsSane runs upstream's csi-sanity against the driver of the other tests, with file systems and
// with block devices, because a node that works with a driver that breaks the specification shows little. The specs of
// what the driver does not offer, such as snapshots, are skipped.
func TestTheDriverOfTheTestsIsSane(t *testing.T) {
	require.Root(t, "mounting")
	_, err := os.Stat("/dev/loop-control")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "csi") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	socket := filepath.Join(dir, "csi.sock")
	driver := csidriver.NewPlugin("dirs.quartet.test", "node-1", filepath.Join(dir, "volumes"), socket)
	if err := driver.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(driver.Stop)
	for _, access := range []string{"mount", "block"} {
		config := sanity.NewTestConfig()
		config.Address, config.TestVolumeAccessType = "unix://"+socket, access
		config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
		tests := sanity.GinkgoTest(&config)
		t.Cleanup(tests.Finalize)
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "csi-sanity")
	for _, wrong := range driver.Wrong() {
		t.Log(wrong) // the suite asks for what a node must not ask for
	}
}
