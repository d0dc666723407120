package bundle

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// pluginChains is the prefix of the chains that the CNI plugins create for each pod.
const pluginChains = "CNI-"

// endMasquerading removes the packet filter rules that the CNI plugins have left for the pods of a network. None of
// these pods may run any more. A plugin that is killed during a pod's removal, for example together with its caller,
// may have removed the pod's interface but not its rules; when it is called again it finds no interface and leaves the
// rules. Missing rules are no error, and neither is a machine without iptables or without the table.
func endMasquerading(network string) error {
	out, err := exec.Command("iptables", "--wait", "--table", "nat", "--list-rules").Output()
	if err != nil {
		return nil //nolint:nilerr // the plugins use the same command: where it does not work there is no rule of theirs
	}
	changes := undoing(string(out), network)
	if len(changes) == 0 {
		return nil
	}
	cmd := exec.Command("iptables-restore", "--wait", "--noflush")
	cmd.Stdin = strings.NewReader(strings.Join(slices.Concat([]string{"*nat"}, changes, []string{"COMMIT", ""}), "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("removing the rules of pods (%s): %w: %s", strings.Join(changes, "; "), err, bytes.TrimSpace(out))
	}
	return nil
}

// undoing returns the iptables-restore input that removes the rules of a network's pods. Each rule has the network's
// name in its comment, except rules in the chain of a published port, which are removed with the chain.
func undoing(rules, network string) []string {
	var jumps, chains []string
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "-A" || !strings.Contains(line, `name: \"`+network+`\" id: `) {
			continue
		}
		target := fields[len(fields)-1]
		if !strings.HasPrefix(target, pluginChains) {
			target = fields[1] // a rule in the chain of a pod
		} else {
			jumps = append(jumps, "-D"+strings.TrimPrefix(line, "-A"))
		}
		if strings.HasPrefix(target, pluginChains) && !slices.Contains(chains, target) {
			chains = append(chains, target)
		}
	}
	for _, do := range []string{"-F ", "-X "} {
		for _, chain := range chains {
			jumps = append(jumps, do+chain)
		}
	}
	return jumps
}
