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
	return nil, nil, errors.New("this node has no API server that could issue certificates; leave the source out, or put a certificate in a Secret")
}

// Forget is a no-op.
func (None) Forget(types.UID) {}
