package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ErrNoRuntimeConfig is the error of a runtime that lacks the call RuntimeConfig. Kubernetes 1.38 does not support it.
var ErrNoRuntimeConfig = errors.New("the container runtime does not report its configuration")

// CgroupDriver asks a runtime for its cgroup driver, and returns a value of the field cgroupDriver of the
// KubeletConfiguration. It is empty if the runtime does not report it. Older runtimes return ErrNoRuntimeConfig.
func CgroupDriver(ctx context.Context, runtime internalapi.RuntimeService) (string, error) {
	config, err := runtime.RuntimeConfig(ctx)
	if status.Code(err) == codes.Unimplemented {
		return "", ErrNoRuntimeConfig
	}
	if err != nil {
		return "", fmt.Errorf("ask the container runtime for its cgroup driver: %w", err)
	}
	if config.GetLinux() == nil {
		return "", nil
	}
	switch driver := config.GetLinux().GetCgroupDriver(); driver {
	case runtimeapi.CgroupDriver_SYSTEMD:
		return "systemd", nil
	case runtimeapi.CgroupDriver_CGROUPFS:
		return "cgroupfs", nil
	default:
		return "", fmt.Errorf("the container runtime has the cgroup driver %v, which is neither systemd nor cgroupfs", driver)
	}
}
