package mirrorpods

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// None is for a node without an API server: it has no mirror pods.
type None struct{}

// Want is a no-op.
func (None) Want(*v1.Pod) {}

// Unwant is a no-op.
func (None) Unwant(types.UID) {}

// Seen is a no-op.
func (None) Seen(*v1.Pod) {}

// Gone is a no-op.
func (None) Gone(types.UID) {}

// SetKnown is a no-op.
func (None) SetKnown(_, _ bool) {}

// SetNode is a no-op.
func (None) SetNode(types.UID) {}
