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

// nodes is the client for Nodes, reduced to the needed calls. Its errors are those of the API server or of client-go.
type nodes struct {
	core rest.Interface
}

// resource is the name of Nodes in a URL.
const resource = "nodes"

func (n nodes) get(ctx context.Context, name string) (*v1.Node, error) {
	return one(ctx, n.core.Get().Resource(resource).Name(name))
}

func (n nodes) create(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	return one(ctx, n.core.Post().Resource(resource).Body(node))
}

// merge changes a Node with a JSON merge patch.
func (n nodes) merge(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	return one(ctx, n.core.Patch(types.MergePatchType).Resource(resource).Name(name).Body(patch))
}

// mergeStatus changes the status of a Node with a JSON merge patch.
func (n nodes) mergeStatus(ctx context.Context, name string, patch []byte) (*v1.Node, error) {
	return one(ctx, n.core.Patch(types.MergePatchType).Resource(resource).Name(name).SubResource("status").Body(patch))
}

// watch watches one Node, from a resource version and for at most watchTimeout.
func (n nodes) watch(ctx context.Context, name, resourceVersion string) (watch.Interface, error) {
	return n.core.Get().Resource(resource).VersionedParams(&metav1.ListOptions{
		Watch: true, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		ResourceVersion: resourceVersion, TimeoutSeconds: ptr.To(int64(watchTimeout.Seconds())),
	}, metav1.ParameterCodec).Watch(ctx)
}

// one sends a request whose response is a Node.
func one(ctx context.Context, request *rest.Request) (*v1.Node, error) {
	node := new(v1.Node)
	if err := request.Do(ctx).Into(node); err != nil {
		return nil, err
	}
	return node, nil
}
