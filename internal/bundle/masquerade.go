package bundle

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// pluginChains begins the names of the chains that the CNI plugins make for one pod each.
const pluginChains = "CNI-"

// endMasquerading removes what the CNI plugins have left in the packet filter for the pods of a network, none of which may run any
// more. A plugin that is ended in the middle of a pod's removal, as by a kill of who has asked for it, has taken the pod's
// interface away and not its rules; when it is asked again it finds no interface, and leaves the rules where they are. Rules that
// are not there are fine, and so is a machine without iptables or without the table.
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

// undoing are the changes, as iptables-restore reads them, that remove the rules of a network's pods. Each of them has the network's
// name in its comment, but for what is in the chain of a published port: that goes with its chain.
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
