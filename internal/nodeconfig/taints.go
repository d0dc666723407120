package nodeconfig

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// validateTaints reports taints that an API server would refuse.
func validateTaints(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	effects := []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute}
	for i, taint := range cfg.RegisterWithTaints {
		field := fmt.Sprintf("registerWithTaints[%d]", i)
		if problems := validation.IsQualifiedName(taint.Key); len(problems) > 0 {
			errs.add(field+".key", fmt.Sprintf("%q: %s", taint.Key, strings.Join(problems, "; ")))
		}
		if problems := validation.IsValidLabelValue(taint.Value); len(problems) > 0 {
			errs.add(field+".value", fmt.Sprintf("%q: %s", taint.Value, strings.Join(problems, "; ")))
		}
		if !slices.Contains(effects, taint.Effect) {
			errs.add(field+".effect", fmt.Sprintf("is %q, must be NoSchedule, PreferNoSchedule or NoExecute", taint.Effect))
		}
		if taint.TimeAdded != nil {
			errs.add(field+".timeAdded", "must be left out")
		}
	}
}
