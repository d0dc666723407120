package statusmanager

import "k8s.io/apimachinery/pkg/types"

// None is for a node without an API server: nobody is told the statuses of pods.
type None struct{}

// Report is a no-op.
func (None) Report(Report) {}

// Forget is a no-op.
func (None) Forget(types.UID) {}

// Unsent returns 0.
func (None) Unsent() int { return 0 }
