package main

import (
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// resizing is what decides whether this node can resize a pod at all.
func (e *engine) resizing() resize.Node {
	kubelet := &e.cfg.Kubelet
	return resize.Node{
		CPUManager: kubelet.CPUManagerPolicy, MemoryManager: kubelet.MemoryManagerPolicy,
		PodLevel: nodeconfig.ResizesPodLevel(kubelet), Swaps: e.manager.Swaps,
	}
}
