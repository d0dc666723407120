package peers

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
)

// Node asks nodestatus for the Node. It fails at once when nodestatus is away: nothing waits for it.
func Node(client nodev1.NodeServiceClient) func(context.Context) (*v1.Node, error) {
	return func(ctx context.Context) (*v1.Node, error) {
		answer, err := client.GetNode(ctx, &nodev1.GetNodeRequest{})
		if err != nil {
			return nil, fmt.Errorf("ask nodestatus for the Node: %w", err)
		}
		node := &v1.Node{}
		if err := node.Unmarshal(answer.GetNode().GetNode()); err != nil {
			return nil, fmt.Errorf("read the Node that nodestatus sent: %w: run the same version of both", err)
		}
		return node, nil
	}
}
