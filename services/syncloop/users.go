package syncloop

import (
	"path/filepath"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/userns"
)

// userIDs returns the allocator of user IDs for pods with a user namespace. It finds the IDs of earlier processes in
// the directories of pods.
func userIDs(cfg nodeconfig.Config) *userns.Allocator {
	perPod := uint32(userns.DefaultPerPod)
	if n := cfg.Kubelet.UserNamespaces; n != nil && n.IDsPerPod != nil {
		perPod = uint32(*n.IDsPerPod) //nolint:gosec // validated
	}
	return userns.New(userns.Config{
		PodsDir: filepath.Join(cfg.RootDir, "pods"), PerPod: perPod,
		Subordinate: func(perPod uint32) (userns.Range, error) { return userns.Subordinate(userns.Local{}, perPod) },
	})
}
