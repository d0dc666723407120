package cpus

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

// The policies of cpuManagerPolicy.
const (
	PolicyNone   = "none"
	PolicyStatic = "static"
)

// The options of cpuManagerPolicyOptions.
const (
	optionWholeCores    = "full-pcpus-only"
	optionDistribute    = "distribute-cpus-across-numa"
	optionBySockets     = "align-by-socket"
	optionSpread        = "distribute-cpus-across-cores"
	optionStrictReserve = "strict-cpu-reservation"
	optionCaches        = "prefer-align-cpus-by-uncorecache"
)

// Options are the parsed options of the static policy.
type Options struct {
	// WholeCores refuses pods that would share a core with another one.
	WholeCores bool
	// Distribute takes the same number of CPUs of several NUMA nodes, if one has too few.
	Distribute bool
	// BySockets aligns CPUs to sockets instead of NUMA nodes.
	BySockets bool
	// Spread takes CPUs of different cores.
	Spread bool
	// StrictReserve keeps containers without CPUs of their own off the reserved CPUs.
	StrictReserve bool
	// Caches takes CPUs that share a last-level cache if there are enough.
	Caches bool
}

// Gates are the feature gates of the options.
type Gates struct {
	// Alpha and Beta are CPUManagerPolicyAlphaOptions and CPUManagerPolicyBetaOptions.
	Alpha, Beta bool
}

// ParseOptions parses cpuManagerPolicyOptions. Its errors are the kubelet's.
func ParseOptions(values map[string]string, gates Gates) (Options, error) {
	var o Options
	fields := map[string]*bool{
		optionWholeCores: &o.WholeCores, optionDistribute: &o.Distribute, optionBySockets: &o.BySockets,
		optionSpread: &o.Spread, optionStrictReserve: &o.StrictReserve, optionCaches: &o.Caches,
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		field, known := fields[name]
		switch {
		case !known:
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		case (name == optionBySockets || name == optionSpread) && !gates.Alpha:
			return o, fmt.Errorf("CPU Manager Policy Alpha-level Options not enabled, but option %q provided", name)
		case name == optionDistribute && !gates.Beta:
			return o, fmt.Errorf("CPU Manager Policy Beta-level Options not enabled, but option %q provided", name)
		}
		value, err := strconv.ParseBool(values[name])
		if err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
		*field = value
	}
	for _, pair := range [][2]string{
		{optionWholeCores, optionSpread}, {optionDistribute, optionSpread}, {optionCaches, optionSpread},
		{optionCaches, optionDistribute},
	} {
		if *fields[pair[0]] && *fields[pair[1]] {
			return o, fmt.Errorf("static policy options %s and %s can not be used at the same time", pair[0], pair[1])
		}
	}
	return o, nil
}

// check returns why the options do not suit the machine or the policy of the topology manager, in the kubelet's words.
func (o Options) check(m *Machine, topologyPolicy string) error {
	switch {
	case !o.BySockets:
		return nil
	case topologyPolicy == numa.PolicySingleNode:
		return fmt.Errorf("Topolgy manager %s policy is incompatible with CPUManager %s policy option", topologyPolicy,
			optionBySockets) // the kubelet's words
	case m.sockets > m.nodes:
		return errors.New("Align by socket is not compatible with hardware where number of sockets are more than " +
			"number of NUMA")
	}
	return nil
}
