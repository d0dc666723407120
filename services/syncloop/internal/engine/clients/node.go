package clients

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodewatch"
)

// Node returns a function that gets the Node from nodestatus. It fails at once when nodestatus is away, because no
// caller waits for it.
func Node(client nodev1.NodeServiceClient) func(context.Context) (*v1.Node, error) {
	return func(ctx context.Context) (*v1.Node, error) {
		answer, err := client.GetNode(ctx, &nodev1.GetNodeRequest{})
		if err != nil {
			return nil, fmt.Errorf("ask nodestatus for the Node: %w", err)
		}
		return nodewatch.Decode(answer.GetNode())
	}
}
