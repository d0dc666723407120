package target

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
)

// Serving returns nil if the service reports that it is serving.
func Serving(ctx context.Context, conn grpc.ClientConnInterface) error {
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("reading its health: %w", err)
	}
	if answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("it is %v", answer.GetStatus())
	}
	return nil
}

// NodeReady queries nodestatus. It returns nil if the Node has the condition Ready, and otherwise the reason.
func NodeReady(ctx context.Context, conn grpc.ClientConnInterface) error {
	conditions, err := conditionsOf(ctx, conn)
	if err != nil {
		return err
	}
	for _, condition := range conditions {
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

// Pressures asks nodestatus what the node is short of. Each line is a condition that is true, with its message.
func Pressures(ctx context.Context, conn grpc.ClientConnInterface) ([]string, error) {
	conditions, err := conditionsOf(ctx, conn)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, condition := range conditions {
		if condition.Type != corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			lines = append(lines, fmt.Sprintf("%s: %s", condition.Type, strings.TrimSpace(condition.Message)))
		}
	}
	return lines, nil
}

func conditionsOf(ctx context.Context, conn grpc.ClientConnInterface) ([]corev1.NodeCondition, error) {
	answer, err := nodev1.NewNodeServiceClient(conn).GetNode(ctx, &nodev1.GetNodeRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking for the node: %w", err)
	}
	var object corev1.Node
	if err := object.Unmarshal(answer.GetNode().GetNode()); err != nil {
		return nil, fmt.Errorf("reading the node: %w", err)
	}
	return object.Status.Conditions, nil
}
