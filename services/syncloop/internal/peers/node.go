package peers

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// Nodes returns nodestatus' stream of the Node. Subscribing waits for a nodestatus that is away.
func Nodes(client nodev1.NodeServiceClient) stream.Source[*v1.Node] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*v1.Node], error) {
		watch, err := client.WatchNode(ctx, &nodev1.WatchNodeRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch nodestatus' Node: %w", err)
		}
		return func() (*streamv1.Frame, *v1.Node, error) {
			m, err := watch.Recv()
			if err != nil || m.GetNode() == nil {
				return m.GetFrame(), nil, err
			}
			node, err := decodeNode(m.GetNode())
			return m.GetFrame(), node, err
		}, nil
	})
}

func decodeNode(sent *nodev1.Node) (*v1.Node, error) {
	node := &v1.Node{}
	if err := node.Unmarshal(sent.GetNode()); err != nil {
		return nil, fmt.Errorf("read the Node that nodestatus sent: %w: run the same version of both", err)
	}
	return node, nil
}

// Node asks nodestatus for the Node. It fails at once when nodestatus is away: nothing waits for it.
func Node(client nodev1.NodeServiceClient) func(context.Context) (*v1.Node, error) {
	return func(ctx context.Context) (*v1.Node, error) {
		answer, err := client.GetNode(ctx, &nodev1.GetNodeRequest{})
		if err != nil {
			return nil, fmt.Errorf("ask nodestatus for the Node: %w", err)
		}
		return decodeNode(answer.GetNode())
	}
}
