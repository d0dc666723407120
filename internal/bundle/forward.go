package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
)

// forwardComment marks the rules as ours, for who looks at the machine's.
const forwardComment = "quartet pods"

// forwardRules let what pods send, and what is sent to them, through the machine. Where the policy of forwarding is to
// drop, as a Docker engine sets it, pods would reach nothing beyond the machine without them.
func forwardRules(bridge string) [][]string {
	var rules [][]string
	for _, side := range []string{"-i", "-o"} {
		rules = append(rules, []string{"FORWARD", side, bridge, "-m", "comment", "--comment", forwardComment, "-j", "ACCEPT"})
	}
	return rules
}

// allowForwarding has the rules of a bridge in place, each once.
func allowForwarding(bridge string) error {
	for _, rule := range forwardRules(bridge) {
		if iptables("-C", rule) == nil {
			continue
		}
		if err := iptables("-I", rule); err != nil {
			return fmt.Errorf("letting the packets of pods through the machine: %w", err)
		}
	}
	return nil
}

// endForwarding removes the rules of a bridge; those that are not there are fine, and so is a machine without iptables.
func endForwarding(bridge string) error {
	if _, err := exec.LookPath("iptables"); err != nil {
		return nil //nolint:nilerr // without the command there is no rule of ours
	}
	var errs []error
	for _, rule := range forwardRules(bridge) {
		if iptables("-C", rule) != nil {
			continue
		}
		errs = append(errs, iptables("-D", rule))
	}
	return errors.Join(errs...)
}

// iptables does one thing to a rule, waiting for others who change the machine's.
func iptables(do string, rule []string) error {
	out, err := exec.Command("iptables", append([]string{"--wait", do}, rule...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("iptables %s %s: %w: %s", do, rule[0], err, bytes.TrimSpace(out))
	}
	return nil
}
