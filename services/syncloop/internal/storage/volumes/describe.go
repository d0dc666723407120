package volumes

import (
	"cmp"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/protobuf/types/known/timestamppb"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// Count returns the present number of volumes of each kind: the desired ones, and those that exist or may exist.
func (m *Manager) Count() []Count {
	m.mu.Lock()
	desired, actual := map[string]int{}, map[string]int{}
	var names []string
	for _, plugin := range m.cfg.Plugins {
		names = append(names, readableName(plugin.Name()))
	}
	for uid, p := range m.pods {
		for k, s := range p.volumes {
			name := m.kindOf(k)
			if p.intent == wanted && s.inSpec {
				desired[name]++
			}
			if s.exists && !m.isPlaceOfOther(uid, k) {
				actual[name]++
			}
		}
	}
	m.mu.Unlock()
	slices.Sort(names)
	var counts []Count
	for _, name := range slices.Compact(names) {
		counts = append(counts,
			Count{Plugin: name, State: StateDesired, Volumes: desired[name]},
			Count{Plugin: name, State: StateActual, Volumes: actual[name]})
	}
	return counts
}

// Describe returns the state of a pod's volumes, sorted by name.
func (m *Manager) Describe(uid types.UID) []*enginev1.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.pods[uid]
	var all []*enginev1.Volume
	for _, k := range ordered(known) {
		s := known.volumes[k]
		if m.isPlaceOfOther(uid, k) {
			continue
		}
		one := &enginev1.Volume{Name: k.name, Plugin: m.kindOf(k), State: s.describe(known.intent)}
		if plugin := m.plugin(k.plugin); plugin != nil {
			if _, ok := plugin.(InPlace); !ok {
				_, one.Path = m.where(k)
			}
		}
		if plugin, ok := m.plugin(k.plugin).(Claimed); ok {
			one.Claim, one.PersistentVolume = plugin.Claim(m.dir(k))
		}
		if s.err != nil {
			one.LastError = s.err.Error()
			if waits := (waiting)(nil); errors.As(s.err, &waits) {
				one.WaitsFor = waits.WaitsFor()
			}
		}
		if s.running != none {
			one.Since = timestamppb.New(s.since)
		} else if s.err != nil && s.did == s.wants(known.intent) && !s.notBefore.IsZero() {
			one.NextTryAt = timestamppb.New(s.notBefore)
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b *enginev1.Volume) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// waiting is an error of a volume that waits for an object of the cluster.
type waiting interface {
	error
	// WaitsFor returns the object: "persistentvolumeclaim shop/data".
	WaitsFor() string
}

// describe returns the state in the contract.
func (s *state) describe(pod intent) enginev1.VolumeState {
	switch {
	case s.running == tearingDown || pod == released:
		return enginev1.VolumeState_VOLUME_STATE_TEARING_DOWN
	case s.ready:
		return enginev1.VolumeState_VOLUME_STATE_READY
	case pod == unknown || !s.inSpec:
		return enginev1.VolumeState_VOLUME_STATE_FOUND
	default:
		return enginev1.VolumeState_VOLUME_STATE_SETTING_UP
	}
}
