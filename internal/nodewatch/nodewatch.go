// Package nodewatch follows nodestatus' stream of the Node, for configmux and syncloop.
package nodewatch

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

// Source returns the stream. Subscribing waits for a nodestatus that is unreachable.
func Source(client nodev1.NodeServiceClient) stream.Source[*nodev1.Node] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*nodev1.Node], error) {
		watch, err := client.WatchNode(ctx, &nodev1.WatchNodeRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watch nodestatus' Node: %w", err)
		}
		return func() (*streamv1.Frame, *nodev1.Node, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetNode(), err
		}, nil
	})
}

// Decode returns the v1.Node in a message of nodestatus. It fails if the bytes cannot be decoded.
func Decode(sent *nodev1.Node) (*v1.Node, error) {
	node := &v1.Node{}
	if err := node.Unmarshal(sent.GetNode()); err != nil {
		return nil, fmt.Errorf("read the Node that nodestatus sent: %w: run the same version of both", err)
	}
	return node, nil
}
