package vmnode

import (
	"testing"

	"github.com/quartet-node/quartet/test/vm"
)

// TestANodeInAMachine has one machine for all its parts, because each start of one takes long. It is switched off
// without a warning once, between two parts.
func TestANodeInAMachine(t *testing.T) {
	if !vm.Inside(t, machine()) {
		return
	}
	swapOn(t, "/dev/vdb")
	reserveHugePages(t)
	mountImages(t)
	if vm.Start() == 1 {
		n := startNode(t, "")
		n.in("cgroups", testCgroups)
		n.in("resize", testResize)
		n.in("pressure", testPressure)
		n.in("out of memory", testOutOfMemory)
		n.in("AppArmor", testAppArmor)
		n.in("huge pages", testHugePages)
		n.in("a giant page", testGiantPage)
		n.in("the disk of images", testImageDisk)
		n.in("NFS", testNFS)
		n.in("removal", testRemoval)
		n.in("the scope of containers", testScopeOfContainers)
		n.in("NUMA nodes", testNUMANodes)
		n.in("before a restart", prepareRestart)
		vm.Restart(t)
	}
	n := startNode(t, "singleProcessOOMKill: true\ntopologyManagerScope: pod\n", "--kubeconfig", serveAPI(t, swappers()...))
	n.in("after a restart", testRestart)
	n.in("one process", testSingleProcess)
	n.in("swap", testSwap)
	n.in("the scope of pods", testScopeOfPods)
}
