package tokens

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// None is for a node without an API server: nothing issues tokens.
type None struct{}

// Token returns an error that says what to do instead.
func (None) Token(context.Context, *v1.Pod, string, int64) (string, error) {
	return "", errors.New("this node has no tokens to give; leave the source out, or say automountServiceAccountToken: false")
}

// Forget is a no-op.
func (None) Forget(types.UID) {}
