package source

import "k8s.io/apimachinery/pkg/types"

// Holder is a pod whose name or UID another pod requests.
type Holder struct {
	// Name is the pod's full name, and UID its UID.
	Name types.NamespacedName
	UID  types.UID
	// Source is its source, and Path its file or URL.
	Source, Path string
}
