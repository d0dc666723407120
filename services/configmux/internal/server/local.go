package server

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
)

// Local is the source "local"; *localsource.Source implements it.
type Local interface {
	// Apply creates or replaces a pod.
	Apply(ctx context.Context, pod *v1.Pod, dryRun bool) (localsource.Applied, error)
	// Delete deletes a pod.
	Delete(ctx context.Context, name types.NamespacedName) error
}

// ApplyPod implements configv1.ConfigServiceServer.
func (s *Server) ApplyPod(ctx context.Context, req *configv1.ApplyPodRequest) (*configv1.ApplyPodResponse, error) {
	if s.local == nil {
		return s.UnimplementedConfigServiceServer.ApplyPod(ctx, req)
	}
	pod := &v1.Pod{}
	if err := pod.Unmarshal(req.GetPod()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the pod is not the bytes of a v1.Pod: %v", err)
	}
	// Until the other sources are ready, their names are unknown.
	select {
	case <-s.opening:
	case <-ctx.Done():
		return nil, statusOf(ctx.Err())
	}
	applied, err := s.local.Apply(ctx, pod, req.GetDryRun())
	if err != nil {
		return nil, statusOf(err)
	}
	data, err := applied.Pod.Marshal()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "the pod was applied and cannot be encoded: %v", err)
	}
	return &configv1.ApplyPodResponse{Pod: &configv1.PodUpdate{
		Op: opOf(applied.Op), Source: localsource.Name, Pod: data, Traceparent: telemetry.Traceparent(ctx),
	}}, nil
}

// DeletePod implements configv1.ConfigServiceServer.
func (s *Server) DeletePod(ctx context.Context, req *configv1.DeletePodRequest) (*configv1.DeletePodResponse, error) {
	if s.local == nil {
		return s.UnimplementedConfigServiceServer.DeletePod(ctx, req)
	}
	if err := s.local.Delete(ctx, types.NamespacedName{Namespace: req.GetNamespace(), Name: req.GetName()}); err != nil {
		return nil, statusOf(err)
	}
	return &configv1.DeletePodResponse{}, nil
}

// opOf converts the operation of an apply.
func opOf(op podset.Op) configv1.Op {
	switch op { //nolint:exhaustive // an apply does nothing else
	case podset.Add:
		return configv1.Op_OP_ADD
	case podset.Update:
		return configv1.Op_OP_UPDATE
	default:
		return configv1.Op_OP_UNSPECIFIED
	}
}

// statusOf converts an error of the source to the code in the contract.
func statusOf(err error) error {
	var (
		invalid   *localsource.InvalidError
		taken     *localsource.TakenError
		unknown   *localsource.UnknownError
		ambiguous *localsource.AmbiguousError
		full      *localsource.FullError
		noObject  *localsource.UnknownObjectError
		held      *localsource.ObjectTakenError
		keyFile   *sealing.FileError
	)
	switch {
	case errors.As(err, &invalid):
		return violations(invalid)
	case errors.As(err, &taken), errors.As(err, &held):
		return status.Error(codes.AlreadyExists, err.Error())
	case errors.As(err, &unknown), errors.As(err, &noObject):
		return status.Error(codes.NotFound, err.Error())
	case errors.As(err, &ambiguous), errors.As(err, &keyFile):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.As(err, &full):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, localsource.ErrEnded):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	default:
		return status.Error(codes.Internal, err.Error())
	}
}

// violations returns INVALID_ARGUMENT with one violation for each field.
func violations(invalid *localsource.InvalidError) error {
	details := &errdetails.BadRequest{}
	for _, p := range invalid.Problems {
		details.FieldViolations = append(
			details.FieldViolations,
			&errdetails.BadRequest_FieldViolation{Field: p.Field, Description: p.Message},
		)
	}
	plain := status.New(codes.InvalidArgument, invalid.Error())
	detailed, err := plain.WithDetails(details)
	if err != nil {
		return plain.Err()
	}
	return detailed.Err()
}
