package syncloop

import (
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// resizing returns the properties of this node that make resizes infeasible.
func resizing(h *host, manager *executor.Manager) resize.Node {
	kubelet := &h.cfg.Kubelet
	return resize.Node{
		CPUManager: kubelet.CPUManagerPolicy, MemoryManager: kubelet.MemoryManagerPolicy,
		PodLevel: nodeconfig.ResizesPodLevel(kubelet), Swaps: manager.Swaps,
	}
}
