package shadow

import (
	"context"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/stream"
)

// withPods returns a stream of the Node with the number of pods of another configuration. nodestatus has computed the
// other resources by its own.
func withPods(source stream.Source[*nodev1.Node], maxPods, podsPerCore int64) stream.Source[*nodev1.Node] {
	return nodes{source: source, maxPods: maxPods, podsPerCore: podsPerCore}
}

type nodes struct {
	source               stream.Source[*nodev1.Node]
	maxPods, podsPerCore int64
}

// Subscribe implements stream.Source.
func (n nodes) Subscribe(ctx context.Context, token []byte) (stream.Subscription[*nodev1.Node], error) {
	inner, err := n.source.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return nodeSubscription{Subscription: inner, nodes: n}, nil
}

type nodeSubscription struct {
	stream.Subscription[*nodev1.Node]
	nodes nodes
}

// Next implements stream.Subscription.
func (s nodeSubscription) Next(ctx context.Context) (stream.Message[*nodev1.Node], error) {
	m, err := s.Subscription.Next(ctx)
	if err != nil || m.Value == nil {
		return m, err
	}
	if changed := s.nodes.change(m.Value); changed != nil {
		m.Value = changed
	}
	return m, nil
}

// change returns the Node with another number of pods; nil if it cannot be read, which the loop reports.
func (n nodes) change(sent *nodev1.Node) *nodev1.Node {
	node, err := nodewatch.Decode(sent)
	if err != nil {
		return nil
	}
	pods := n.maxPods
	if n.podsPerCore > 0 {
		pods = min(pods, n.podsPerCore*node.Status.Capacity.Cpu().Value())
	}
	quantity := *resource.NewQuantity(pods, resource.DecimalSI)
	for _, list := range []v1.ResourceList{node.Status.Capacity, node.Status.Allocatable} {
		if list != nil {
			list[v1.ResourcePods] = quantity
		}
	}
	out := &nodev1.Node{}
	proto.Merge(out, sent)
	if out.Node, err = node.Marshal(); err != nil {
		return nil
	}
	return out
}
