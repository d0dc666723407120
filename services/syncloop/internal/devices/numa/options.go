package numa

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// The policies of topologyManagerPolicy.
const (
	PolicyNone       = "none"
	PolicyBestEffort = "best-effort"
	PolicyRestricted = "restricted"
	PolicySingleNode = "single-numa-node"
)

// The scopes of topologyManagerScope.
const (
	ScopeContainer = "container"
	ScopePod       = "pod"
)

// The options of topologyManagerPolicyOptions.
const (
	optionClosest = "prefer-closest-numa-nodes"
	optionMaximum = "max-allowable-numa-nodes"
)

// defaultMaximum is the kubelet's number of NUMA nodes beyond which the hints of a machine become too many.
const defaultMaximum = 8

// Options are the parsed options of a policy.
type Options struct {
	// Closest prefers NUMA nodes that are close to each other.
	Closest bool
	// Maximum is the number of NUMA nodes that the machine may have.
	Maximum int
}

// ParseOptions parses topologyManagerPolicyOptions. Its errors are the kubelet's.
func ParseOptions(values map[string]string) (Options, error) {
	options := Options{Maximum: defaultMaximum}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value, err := values[name], error(nil)
		switch name {
		case optionClosest:
			if options.Closest, err = strconv.ParseBool(value); err != nil {
				return options, fmt.Errorf("bad value for option %q: %w", name, err)
			}
		case optionMaximum:
			if options.Maximum, err = strconv.Atoi(value); err != nil {
				return options, fmt.Errorf("unable to convert policy option to integer %q: %w", name, err)
			}
			if options.Maximum < defaultMaximum {
				return options, fmt.Errorf("the minimum value of %q should not be less than %v", name, defaultMaximum)
			}
		default:
			return options, fmt.Errorf("unknown Topology Manager Policy option: %q", name)
		}
	}
	return options, nil
}
