package podcertificates

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// None is for a node without an API server: nothing signs certificates.
type None struct{}

// Get returns an error that says what to do instead.
func (None) Get(
	context.Context, *v1.Pod, string, int, *v1.PodCertificateProjection,
) (privateKey, chain []byte, err error) {
	return nil, nil, errors.New("this node has no API server whose signers could be asked for a certificate; leave the source out, or have one in a secret")
}

// Forget is a no-op.
func (None) Forget(types.UID) {}
