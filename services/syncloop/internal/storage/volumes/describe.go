package volumes

import (
	"cmp"
	"errors"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
			name, _, _ := m.measuredKind(k)
			names = append(names, name)
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

// List returns the state of the volumes of all pods, in no particular order. A pod that this process was not told about
// has no name. Volumes that are in place and only a path of the node or an image are left out: nothing is mounted.
func (m *Manager) List() []*enginev1.PodVolume {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*enginev1.PodVolume
	for uid := range m.pods {
		one := &enginev1.PodVolume{PodUid: string(uid)}
		if p := m.specs[uid].pod; p != nil {
			one.Namespace, one.Pod = p.Namespace, p.Name
		}
		for _, volume := range m.describe(uid) {
			if volume.GetPath() == "" && volume.GetState() == enginev1.VolumeState_VOLUME_STATE_READY {
				continue
			}
			all = append(all, &enginev1.PodVolume{
				PodUid: one.GetPodUid(), Namespace: one.GetNamespace(), Pod: one.GetPod(), Volume: volume,
			})
		}
	}
	return all
}

// Describe returns the state of a pod's volumes, sorted by name.
func (m *Manager) Describe(uid types.UID) []*enginev1.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.describe(uid)
	slices.SortStableFunc(all, func(a, b *enginev1.Volume) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// describe returns the state of a pod's volumes. The caller holds mu.
func (m *Manager) describe(uid types.UID) []*enginev1.Volume {
	known := m.pods[uid]
	var all []*enginev1.Volume
	for _, k := range ordered(known) {
		if !m.isPlaceOfOther(uid, k) {
			all = append(all, m.describeOne(k, known.volumes[k], known.intent))
		}
	}
	return all
}

// describeOne returns the state of a volume. The caller holds mu.
func (m *Manager) describeOne(k key, s *state, pod intent) *enginev1.Volume {
	one := &enginev1.Volume{Name: k.name, Plugin: m.kindOf(k), State: s.describe(pod)}
	if plugin := m.plugin(k.plugin); plugin != nil {
		if _, ok := plugin.(InPlace); !ok {
			_, one.Path = m.where(k)
		}
	}
	if plugin, ok := m.plugin(k.plugin).(Claimed); ok {
		bound := plugin.Claim(m.dir(k))
		one.Claim, one.PersistentVolume, one.Driver = bound.Claim, bound.PersistentVolume, bound.Driver
	}
	if v := volumeOf(m.specs[k.pod].pod, k.name); v != nil && one.Claim == "" {
		one.Claim = ClaimOf(m.specs[k.pod].pod, v)
	}
	if !s.wantedSince.IsZero() {
		one.WantedSince = timestamppb.New(s.wantedSince)
	}
	one.WaitsFor = s.waitsFor(pod, m.cfg.Clock.Now())
	if s.err != nil {
		one.LastError = s.err.Error()
	}
	if s.running != none {
		one.Since = timestamppb.New(s.since)
	} else if s.err != nil && s.did == s.wants(pod) && !s.notBefore.IsZero() {
		one.NextTryAt = timestamppb.New(s.notBefore)
	}
	return one
}

// ClaimOf returns the name of the claim that a volume of a pod's spec names; empty for other volumes.
func ClaimOf(pod *v1.Pod, v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}

// waitsFor returns what has to change before an operation that has failed can succeed; empty if it is not known.
func waitsFor(err error) string {
	if waits := (waiting)(nil); errors.As(err, &waits) {
		return waits.WaitsFor()
	}
	return ""
}

// waiting is an error of a volume that waits for something else to change.
type waiting interface {
	error
	// WaitsFor returns what has to change: "persistentvolumeclaim shop/data", "CSI driver disks.example.com".
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
