package nodevolumes

import (
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Describe returns the volumes whose claims were deleted, sorted by name, for the API of syncloop.
func (v *Volumes) Describe() []*enginev1.ReleasedVolume {
	var all []*enginev1.ReleasedVolume
	for _, one := range v.Released() {
		pv, err := one.PV.Marshal()
		if err != nil { // a volume that was read from its record can be encoded
			v.cfg.Logger.Error("a volume cannot be described", telemetry.KeyVolume, one.PV.Name, telemetry.KeyError, err)
			continue
		}
		released := &enginev1.ReleasedVolume{PersistentVolume: pv}
		if one.Problem != nil {
			released.Problem = one.Problem.Error()
		}
		all = append(all, released)
	}
	return all
}
