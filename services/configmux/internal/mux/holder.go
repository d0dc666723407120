package mux

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Holder returns the desired pod with that name or that UID of a source other than except; ok is false if there is
// none.
func (m *Mux) Holder(name types.NamespacedName, uid types.UID, except string) (holder source.Holder, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, state := range m.sources {
		if other == except {
			continue
		}
		for has, p := range state.published {
			if p.name == name || has == uid {
				return source.Holder{Name: p.name, UID: has, Source: other, Path: p.path}, true
			}
		}
	}
	return source.Holder{}, false
}
