package admission

import v1 "k8s.io/api/core/v1"

// AsksForMore tells whether a pod asks for more of any resource than another version of it.
func AsksForMore(pod, than *v1.Pod) bool {
	has := requests(than)
	for name, quantity := range requests(pod) {
		if quantity.Cmp(has[name]) > 0 {
			return true
		}
	}
	return false
}
