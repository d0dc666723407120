package statusmanager

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// None is the Manager of a node without an API server. It discards reports.
type None struct{}

// Report is a no-op.
func (None) Report(podstatus.Report) {}

// Forget is a no-op.
func (None) Forget(types.UID) {}

// Unsent returns 0.
func (None) Unsent() int { return 0 }
