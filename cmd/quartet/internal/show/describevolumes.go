package show

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// printVolumes prints the volumes of a pod, and the state of those that its containers mount.
func (d description) printVolumes(p *page, now time.Time) {
	volumes := d.work.GetVolumes()
	if len(d.pod.Spec.Volumes) == 0 && len(volumes) == 0 {
		p.empty("Volumes")
		return
	}
	p.section(0, "Volumes")
	inSpec := map[string]bool{}
	for i := range d.pod.Spec.Volumes {
		volume := &d.pod.Spec.Volumes[i]
		inSpec[volume.Name] = true
		p.field(1, volume.Name, volumeType(volume))
		for _, one := range volumes {
			if one.GetName() == volume.Name {
				printVolume(p, one, now)
			}
		}
	}
	for _, one := range volumes {
		if !inSpec[one.GetName()] {
			p.field(1, one.GetName(), one.GetPlugin())
			printVolume(p, one, now)
		}
	}
}

// printVolume prints the state of a volume.
func printVolume(p *page, volume *enginev1.Volume, now time.Time) {
	state := volumeStateWord(volume.GetState())
	if volume.GetState() == enginev1.VolumeState_VOLUME_STATE_FOUND {
		state += " by an earlier process"
	}
	if since := volume.GetSince(); since != nil {
		state += ", worked on for " + age(since.AsTime(), now)
	}
	p.field(2, "State", state)
	if volume.GetClaim() != "" {
		p.field(2, "Claim", volume.GetClaim())
	}
	if volume.GetPersistentVolume() != "" {
		p.field(2, "Persistent Volume", volume.GetPersistentVolume())
	}
	if volume.GetDriver() != "" {
		p.field(2, "Driver", volume.GetDriver())
	}
	if volume.GetWaitsFor() != "" {
		p.field(2, "Waits For", volume.GetWaitsFor())
	}
	if volume.GetPath() != "" {
		p.field(2, "Path", volume.GetPath())
	}
	if volume.GetLastError() != "" {
		text := oneLine(volume.GetLastError())
		if next := volume.GetNextTryAt(); next != nil {
			text += " (again in " + age(now, next.AsTime()) + ")"
		}
		p.field(2, "Last Error", text)
	}
}

func volumeStateWord(state enginev1.VolumeState) string {
	switch state {
	case enginev1.VolumeState_VOLUME_STATE_SETTING_UP:
		return "not in place yet"
	case enginev1.VolumeState_VOLUME_STATE_READY:
		return "in place"
	case enginev1.VolumeState_VOLUME_STATE_TEARING_DOWN:
		return "being removed"
	case enginev1.VolumeState_VOLUME_STATE_FOUND:
		return "left"
	case enginev1.VolumeState_VOLUME_STATE_UNSPECIFIED:
	}
	return unknown
}

// volumeType returns a summary of a volume in one line.
func volumeType(v *v1.Volume) string {
	switch {
	case v.HostPath != nil:
		kind := ""
		if v.HostPath.Type != nil && *v.HostPath.Type != "" {
			kind = " (" + string(*v.HostPath.Type) + ")"
		}
		return "HostPath " + v.HostPath.Path + kind
	case v.EmptyDir != nil:
		text := "EmptyDir"
		if v.EmptyDir.Medium != "" {
			text += " in " + string(v.EmptyDir.Medium)
		}
		if v.EmptyDir.SizeLimit != nil {
			text += " up to " + v.EmptyDir.SizeLimit.String()
		}
		return text
	case v.ConfigMap != nil:
		return "ConfigMap " + v.ConfigMap.Name
	case v.Secret != nil:
		return "Secret " + v.Secret.SecretName
	case v.PersistentVolumeClaim != nil:
		return "PersistentVolumeClaim " + v.PersistentVolumeClaim.ClaimName
	}
	// Other volumes are named by their field, the only one that is set.
	data, err := json.Marshal(v.VolumeSource)
	fields := map[string]json.RawMessage{}
	if err != nil || json.Unmarshal(data, &fields) != nil || len(fields) == 0 {
		return unknown
	}
	name := slices.Sorted(maps.Keys(fields))[0]
	return strings.ToUpper(name[:1]) + name[1:]
}
