// Package nodehealth is the health of the whole node as the kubelet serves it on healthzPort: it judges what package heartbeat has
// heard of the four processes, and serves the verdict. kubeadm waits for it, and those who watch over a kubelet restart the node by it.
//
// nodestatus serves it because it asks the others anyway, needs no right for it and depends on none of them. Where nodestatus itself is
// away or does not go on, there is no answer, which is a failure, too.
package nodehealth

import (
	"errors"
	"fmt"
	"time"

	"github.com/quartet-node/quartet/internal/healthz"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// patience is how long a process that worked may be away, begin anew or stand still before its check fails: as long as a node
// that was ready stays so. A process that is killed and started again does not make the check fail.
const patience = nodeobject.AwayPatience

// Part is what is known of a process.
type Part struct {
	// Name is that of the process, and of its check.
	Name string
	// Trouble says why it does not do its work, with what to do; empty when it does. What the process itself waits for, as a network
	// that no plugin has set up, is none.
	Trouble string
	// LastGood is when it was last known to work; zero when it never was since nodestatus began.
	LastGood time.Time
}

// Failing returns why the check of a process fails at a time; nil when it does not. One that has not worked yet fails at once, so that a
// node that starts is not taken for one that works.
func (p Part) Failing(now time.Time) error {
	switch {
	case p.Trouble == "":
		return nil
	case p.LastGood.IsZero():
		return errors.New(p.Trouble)
	case now.Sub(p.LastGood) < patience:
		return nil
	default:
		return fmt.Errorf("%s (for %s)", p.Trouble, now.Sub(p.LastGood).Round(time.Second))
	}
}

// Judge says what to judge.
type Judge struct {
	// Parts returns what is known of the other processes.
	Parts func() []Part
	// Self returns why nodestatus itself does not do its work.
	Self func() error
	// Log returns why the log cannot be written.
	Log func() error
	Now func() time.Time
}

// selfName is the name of this process and its check.
const selfName = "nodestatus"

// Checks are those that the kubelet has, ping, log and syncloop, and one for each other process with these names.
func (j Judge) Checks(names ...string) []healthz.Check {
	checks := []healthz.Check{healthz.Ping(), {Name: "log", Do: j.Log}}
	for _, name := range names {
		checks = append(checks, healthz.Check{Name: name, Do: func() error { return j.part(name) }})
	}
	return append(checks, healthz.Check{Name: selfName, Do: j.Self})
}

// part judges the process of a name.
func (j Judge) part(name string) error {
	for _, part := range j.Parts() {
		if part.Name == name {
			return part.Failing(j.Now())
		}
	}
	return fmt.Errorf("nothing is known of %s yet", name)
}
