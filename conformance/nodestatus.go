package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
)

const nodeService = "quartet.node.v1.NodeService"

// NodeStatus returns the rules of nodestatus: quartet.node.v1, and the stream contract for its Node.
func NodeStatus() Suite {
	return Suite{Service: "nodestatus", rules: slices.Concat(levelStreamRules(watchNode),
		moreStreamRules("node-events", watchNodeEvents), []rule{
			plainRule("get-node", "quartet.node.v1.Node.node", "The v1.Node with its status, encoded with its Marshal method.",
				nodeGet),
			plainRule("watch-node", nodeService+".WatchNode", "with the node's name as its only key", nodeWatch),
			plainRule("health", nodeService+".GetHealth", "It never fails while the process lives.", nodeHealth),
		})}
}

func nodeClient(b *bench) nodev1.NodeServiceClient { return nodev1.NewNodeServiceClient(b.part.Conn) }

// watchNode is the watch of the Node.
func watchNode(b *bench) watch {
	return func(ctx context.Context, token []byte) (receive, error) {
		stream, err := nodeClient(b).WatchNode(ctx, &nodev1.WatchNodeRequest{ResumeToken: token}, ready())
		if err != nil {
			return nil, err
		}
		return func() (message, error) {
			m, err := stream.Recv()
			if err != nil {
				return message{}, err
			}
			return message{Frame: m.GetFrame(), payload: m.GetNode()}, nil
		}, nil
	}
}

// watchNodeEvents is the watch of the events of the node.
func watchNodeEvents(b *bench) watch {
	return watchOf(func(
		ctx context.Context, token []byte,
	) (interface {
		Recv() (*nodev1.WatchNodeEventsResponse, error)
	}, error) {
		return nodeClient(b).WatchNodeEvents(ctx, &nodev1.WatchNodeEventsRequest{ResumeToken: token}, ready())
	})
}

// node returns the name of the Node of GetNode.
func (b *bench) node(ctx context.Context) (string, error) {
	var node corev1.Node
	err := b.eventually(ctx, func(ctx context.Context) error {
		resp, err := nodeClient(b).GetNode(ctx, &nodev1.GetNodeRequest{}, ready())
		if err != nil {
			return fmt.Errorf("GetNode: %w", err)
		}
		return node.Unmarshal(resp.GetNode().GetNode())
	})
	return node.Name, err
}

func nodeGet(ctx context.Context, b *bench) error {
	name, err := b.node(ctx)
	if err != nil {
		return err
	}
	if name == "" {
		return errors.New("the Node has no name")
	}
	return nil
}

func nodeWatch(ctx context.Context, b *bench) error {
	name, err := b.node(ctx)
	if err != nil {
		return err
	}
	_, begun, err := b.watching(ctx, watchNode(b), nil)
	if err != nil {
		return err
	}
	return sameKeys(map[string]bool{name: true}, begun)
}

func nodeHealth(ctx context.Context, b *bench) error {
	health, err := nodeClient(b).GetHealth(ctx, &nodev1.GetHealthRequest{}, ready())
	if err != nil {
		return fmt.Errorf("GetHealth: %w", err)
	}
	if !health.GetHealthy() && len(health.GetReasons()) == 0 {
		return errors.New("it is unhealthy without a reason")
	}
	return nil
}
