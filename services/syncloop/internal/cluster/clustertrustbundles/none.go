package clustertrustbundles

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// None is for a node without an API server: it has no bundles.
type None struct{}

// Get returns an error that says what to do instead.
func (None) Get(context.Context, *v1.Pod, *v1.ClusterTrustBundleProjection) ([]byte, error) {
	return nil, errors.New("this node has no API server that could provide trust bundles; leave the source out, or put the roots in a ConfigMap")
}

// Forget is a no-op.
func (None) Forget(types.UID) {}
