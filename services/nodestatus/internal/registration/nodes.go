package registration

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// nodes are the Nodes of an API server, and of what it can do with them as much as is needed. Its errors are the API
// server's or client-go's.
type nodes struct {
	core rest.Interface
}

// resource is what Nodes are called in a URL.
const resource = "nodes"

func (n nodes) get(ctx context.Context, name string) (*v1.Node, error) {
	return one(ctx, n.core.Get().Resource(resource).Name(name))
}

func (n nodes) create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	return one(ctx, n.core.Post().Resource(resource).Body(node))
}

// merge changes a Node by a JSON merge patch.
func (n nodes) merge(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	return one(ctx, n.core.Patch(types.MergePatchType).Resource(resource).Name(name).Body(patch))
}

// watch watches one Node, from after a resource version on and for as long as watchTimeout.
func (n nodes) watch(ctx context.Context, name, since string) (watch.Interface, error) {
	return n.core.Get().Resource(resource).VersionedParams(&metav1.ListOptions{
		Watch: true, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		ResourceVersion: since, TimeoutSeconds: ptr.To(int64(watchTimeout.Seconds())),
	}, metav1.ParameterCodec).Watch(ctx)
}

// one makes a request that is answered with a Node.
func one(ctx context.Context, request *rest.Request) (*v1.Node, error) {
	node := new(v1.Node)
	if err := request.Do(ctx).Into(node); err != nil {
		return nil, err
	}
	return node, nil
}
