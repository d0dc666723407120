package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
)

// forwardComment marks the rules as Quartet's for an operator who lists them.
const forwardComment = "quartet pods"

// forwardRules returns the rules that accept forwarded packets from and to pods. Without them, pods cannot reach beyond
// the machine where the forward policy is drop, as a Docker engine sets it.
func forwardRules(bridge string) [][]string {
	var rules [][]string
	for _, side := range []string{"-i", "-o"} {
		rules = append(rules, []string{"FORWARD", side, bridge, "-m", "comment", "--comment", forwardComment, "-j", "ACCEPT"})
	}
	return rules
}

// allowForwarding adds each rule of a bridge unless it exists.
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

// endForwarding removes the rules of a bridge. Missing rules and a missing iptables are no errors.
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

// iptables applies one operation to a rule. It waits for the lock of iptables.
func iptables(do string, rule []string) error {
	out, err := exec.Command("iptables", append([]string{"--wait", do}, rule...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("iptables %s %s: %w: %s", do, rule[0], err, bytes.TrimSpace(out))
	}
	return nil
}
