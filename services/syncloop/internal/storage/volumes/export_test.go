package volumes

import "k8s.io/apimachinery/pkg/types"

// Forget has a manager begin anew, as a process does, with what it finds on disk now.
func (m *Manager) Forget() {
	m.mu.Lock()
	m.pods, m.specs = map[types.UID]*pod{}, map[types.UID]spec{}
	m.mu.Unlock()
	m.findLeft()
	m.signal()
}
