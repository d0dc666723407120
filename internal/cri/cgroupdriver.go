package cri

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CgroupDriver asks a runtime for its cgroup driver, and returns a value of the field cgroupDriver of the
// KubeletConfiguration. It is empty if the runtime does not report it, as older ones do not.
func CgroupDriver(ctx context.Context, runtime internalapi.RuntimeService) (string, error) {
	config, err := runtime.RuntimeConfig(ctx)
	if status.Code(err) == codes.Unimplemented {
		return "", nil
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
