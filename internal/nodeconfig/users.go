package nodeconfig

import (
	"fmt"
	"math"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// usersUnit divides the number of IDs of a pod with a user namespace, because IDs in images have 16 bits.
const usersUnit = 1 << 16

func validateUserNamespaces(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if cfg.UserNamespaces == nil || cfg.UserNamespaces.IDsPerPod == nil {
		return
	}
	if n := *cfg.UserNamespaces.IDsPerPod; n < usersUnit || n > math.MaxUint32 || n%usersUnit != 0 {
		errs.add(
			"userNamespaces.idsPerPod",
			fmt.Sprintf("is %d, must be a multiple of %d below %d", n, usersUnit, int64(math.MaxUint32)+1),
		)
	}
}
