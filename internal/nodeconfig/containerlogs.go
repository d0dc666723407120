package nodeconfig

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

const (
	// leastLogFiles is the minimum number of files of a log: the one in use and the last rotated one.
	leastLogFiles = 2
	// leastLogInterval is the minimum interval of the size checks.
	leastLogInterval = 3 * time.Second
)

// validateContainerLogs reports impossible limits, as the kubelet does.
func validateContainerLogs(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if _, err := ContainerLogMaxBytes(cfg); err != nil {
		errs.add("containerLogMaxSize", err.Error())
	}
	if n := *cfg.ContainerLogMaxFiles; n < leastLogFiles {
		errs.add("containerLogMaxFiles", fmt.Sprintf("is %d, must be %d or more", n, leastLogFiles))
	}
	if n := *cfg.ContainerLogMaxWorkers; n < 1 {
		errs.add("containerLogMaxWorkers", fmt.Sprintf("is %d, must be 1 or more", n))
	}
	if d := cfg.ContainerLogMonitorInterval.Duration; d < leastLogInterval {
		errs.add("containerLogMonitorInterval", fmt.Sprintf("is %s, must be %s or more", d, leastLogInterval))
	}
}

// ContainerLogMaxBytes returns containerLogMaxSize in bytes. A negative value turns log rotation off. It fails if the
// value is no number of bytes; the error describes the valid form.
func ContainerLogMaxBytes(cfg *kubeletconfigv1beta1.KubeletConfiguration) (int64, error) {
	quantity, err := resource.ParseQuantity(cfg.ContainerLogMaxSize)
	if err != nil {
		return 0, fmt.Errorf(
			"%q is not an amount: must be a number of bytes, for example 10Mi, or -1 for no limit",
			cfg.ContainerLogMaxSize,
		)
	}
	size, whole := quantity.AsInt64()
	if !whole {
		return 0, fmt.Errorf(
			"%q is not a whole number of bytes: must be one, for example 10Mi, or -1 for no limit",
			cfg.ContainerLogMaxSize,
		)
	}
	return size, nil
}
