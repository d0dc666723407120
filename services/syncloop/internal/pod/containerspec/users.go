package containerspec

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// IDs are the user and group IDs of the host that those of a pod are mapped to: the pod's 0 to First, and so on, Length of
// them. The zero value is a pod without a user namespace of its own: its IDs are the host's.
type IDs struct {
	First, Length uint32
}

// mappings are the IDs as the runtime takes them; nil without a user namespace.
func (i IDs) mappings() []*runtimeapi.IDMapping {
	if i.Length == 0 {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: i.First, Length: i.Length}}
}

// namespace is the user namespace as the runtime takes it; nil for the host's.
func (i IDs) namespace() *runtimeapi.UserNamespace {
	if i.Length == 0 {
		return nil
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: i.mappings(), Gids: i.mappings()}
}
