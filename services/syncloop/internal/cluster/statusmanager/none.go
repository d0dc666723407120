package statusmanager

import "k8s.io/apimachinery/pkg/types"

// None is the Manager of a node without an API server. It discards reports.
type None struct{}

// Report is a no-op.
func (None) Report(Report) {}

// Forget is a no-op.
func (None) Forget(types.UID) {}

// Unsent returns 0.
func (None) Unsent() int { return 0 }
