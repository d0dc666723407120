// Package podtest builds pods with requests and limits for tests.
package podtest

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// List returns the resources of pairs such as "cpu", "100m", "memory", "1Mi".
func List(pairs ...string) v1.ResourceList {
	out := v1.ResourceList{}
	for i := 0; i+1 < len(pairs); i += 2 {
		out[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// Container returns a container named main with requests and limits.
func Container(requests, limits v1.ResourceList) v1.Container {
	return v1.Container{Name: "main", Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}
}

// Pod returns the pod shop/web with a UID and containers.
func Pod(uid string, containers ...v1.Container) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: types.UID(uid)},
		Spec:       v1.PodSpec{Containers: containers},
	}
}
