// Package nodehealth is the health of the whole node as the kubelet serves it on healthzPort: it evaluates the state of
// the four processes from package heartbeat, and serves the result. kubeadm waits for it, and supervisors of a kubelet
// restart the node by it.
//
// nodestatus serves it because it polls the other processes anyway, needs no privileges for it and depends on none of
// them. If nodestatus itself is missing or hangs, there is no answer, which is also a failure.
package nodehealth

import (
	"errors"
	"fmt"
	"time"

	"github.com/quartet-node/quartet/internal/healthz"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// timeout is how long a process that worked may be missing, starting or stuck before its check fails: as long as a
// ready node stays ready. A restart of a process does not fail its check.
const timeout = nodeobject.AwayPatience

// Part is the state of one process.
type Part struct {
	// Name is the name of the process and its check.
	Name string
	// Trouble is the problem and its remedy; empty if the process works. Missing dependencies of the process, such as a
	// network that no plugin has set up, do not count.
	Trouble string
	// LastGood is the last time at which it worked; zero if it never did since nodestatus started.
	LastGood time.Time
}

// Failing returns the failure of a process's check at a time; nil if it passes. A process that has not worked yet fails
// at once, so that a starting node does not look healthy.
func (p Part) Failing(now time.Time) error {
	switch {
	case p.Trouble == "":
		return nil
	case p.LastGood.IsZero():
		return errors.New(p.Trouble)
	case now.Sub(p.LastGood) < timeout:
		return nil
	default:
		return fmt.Errorf("%s (for %s)", p.Trouble, now.Sub(p.LastGood).Round(time.Second))
	}
}

// Judge provides the inputs of the checks.
type Judge struct {
	// Parts returns the state of the other processes.
	Parts func() []Part
	// Self returns the problem of nodestatus itself; nil if it works.
	Self func() error
	// Log returns why the log cannot be written; nil if it can.
	Log func() error
	Now func() time.Time
}

// selfName is the name of this process and its check.
const selfName = "nodestatus"

// Checks returns the kubelet's checks, ping, log and syncloop, and one for each other process in names.
func (j Judge) Checks(names ...string) []healthz.Check {
	checks := []healthz.Check{healthz.Ping(), {Name: "log", Do: j.Log}}
	for _, name := range names {
		checks = append(checks, healthz.Check{Name: name, Do: func() error { return j.part(name) }})
	}
	return append(checks, healthz.Check{Name: selfName, Do: j.Self})
}

// part evaluates the process of a name.
func (j Judge) part(name string) error {
	for _, part := range j.Parts() {
		if part.Name == name {
			return part.Failing(j.Now())
		}
	}
	return fmt.Errorf("nothing is known of %s yet", name)
}
