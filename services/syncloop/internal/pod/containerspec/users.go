package containerspec

import runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

// IDs is the range of the host's user and group IDs of a pod with a user namespace: the pod's 0 is First, and so on,
// for Length IDs. The zero value is a pod without its own user namespace.
type IDs struct {
	First, Length uint32
}

// mappings returns the IDs in the runtime's form; nil without a user namespace.
func (i IDs) mappings() []*runtimeapi.IDMapping {
	if i.Length == 0 {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: i.First, Length: i.Length}}
}

// namespace returns the user namespace in the runtime's form; nil for the host's.
func (i IDs) namespace() *runtimeapi.UserNamespace {
	if i.Length == 0 {
		return nil
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: i.mappings(), Gids: i.mappings()}
}
