package source

import "k8s.io/apimachinery/pkg/types"

// Holder is a pod that has a name or a UID which somebody else wants.
type Holder struct {
	// Name is the pod's whole name, UID its UID.
	Name types.NamespacedName
	UID  types.UID
	// Source is where it comes from, and Path the file or URL that it was found in.
	Source, Path string
}
