package updown

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
)

const (
	// healthTimeout bounds each wait of a start: a service serves within a second, the node is ready within a few.
	healthTimeout = time.Minute
	// healthInterval is the time between two questions.
	healthInterval = 50 * time.Millisecond
	// askTimeout bounds one question, so that a service that hangs is seen as not serving.
	askTimeout = 2 * time.Second
)

// waitHealthy waits until each service serves and the node is Ready.
func (n *node) waitHealthy(ctx context.Context) error {
	for _, service := range layout.Services() {
		address := n.layout.Address(service)
		if err := n.progress.step(string(service), func() (string, error) {
			return address, poll(ctx, address, serving)
		}); err != nil {
			return err
		}
	}
	return n.progress.step("node", func() (string, error) {
		return "Ready", poll(ctx, n.layout.Address(layout.NodeStatus), nodeReady)
	})
}

// poll asks until the answer is nil. Its error is the last answer.
func poll(ctx context.Context, address string, ask func(context.Context, *grpc.ClientConn) error) (err error) {
	conn, err := rpc.Dial(address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		askCtx, done := context.WithTimeout(ctx, askTimeout)
		err := ask(askCtx, conn)
		done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

func serving(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("asking for its health: %w", err)
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("it is %v", answer.GetStatus())
	}
	return nil
}

// nodeReady is nil when the Node has the condition Ready, else it says what the node waits for.
func nodeReady(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := nodev1.NewNodeServiceClient(conn).GetNode(ctx, &nodev1.GetNodeRequest{})
	if err != nil {
		return fmt.Errorf("asking for the node: %w", err)
	}
	var object corev1.Node
	if err := object.Unmarshal(answer.GetNode().GetNode()); err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			return nil
		}
		return fmt.Errorf("the node is not ready: %s: %s", condition.Reason, strings.TrimSpace(condition.Message))
	}
	return errors.New("the node has no Ready condition yet")
}
