package admission

import "k8s.io/apimachinery/pkg/util/validation/field"

// ReasonPrivilege is the reason of a pod that asks for access to the host which its source may not give. The kubelet
// has no such rule.
const ReasonPrivilege = "HostPrivilegeForbidden"

// Privileges returns the refusal of a pod for what privilege.Check has found; nil if that is nothing.
func Privileges(forbidden field.ErrorList) *Refusal {
	if len(forbidden) == 0 {
		return nil
	}
	return &Refusal{Reason: ReasonPrivilege, Message: forbidden.ToAggregate().Error()}
}
