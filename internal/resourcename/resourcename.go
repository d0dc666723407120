// Package resourcename tells kinds of resources by their names.
package resourcename

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// IsExtended reports whether a name is one of an extended resource, which a device plugin may have: qualified
// by a domain other than kubernetes.io, and short enough for a resource quota.
func IsExtended(name string) bool {
	if !strings.Contains(name, "/") || strings.Contains(name, v1.ResourceDefaultNamespacePrefix) ||
		strings.HasPrefix(name, v1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+name)) == 0
}
