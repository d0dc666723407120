package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
)

// claimsDir holds a file for each network in use. The file names the owning state directory.
const claimsDir = "/run/quartet/networks"

// networkConfig holds every value in the CNI configuration.
type networkConfig struct {
	// Name is the name of the network, and Bridge that of its link.
	Name, Bridge string
	// Subnet is the network of pod addresses.
	Subnet netip.Prefix
	// IPAMDir records the addresses in use.
	IPAMDir string
	// Backend implements masquerading and port mapping: "iptables", "nftables", or empty if the machine has neither.
	Backend string
}

// network chooses the node's network and creates its bridge. The network does not change while pods have its addresses,
// nor across restarts of the runtime or the machine, unless something else on the machine takes it.
func (b *Bundle) network() (networkConfig, error) {
	bridge := bridgeName(b.cfg.Layout)
	subnet, err := b.subnet(bridge)
	if err != nil {
		return networkConfig{}, fmt.Errorf("choosing a network for pods: %w", err)
	}
	backend := machine.This().PacketFilter()
	if backend == "" {
		b.cfg.Note("neither iptables nor nft is installed: pods reach each other and this machine, but not beyond it, " +
			"and a hostPort fails; install iptables to have both")
	}
	if err := ensureBridge(bridge); err != nil {
		return networkConfig{}, fmt.Errorf(
			"making the bridge %s: %w: the kernel needs CONFIG_BRIDGE (modprobe bridge)",
			bridge,
			err,
		)
	}
	if backend == "iptables" {
		if err := allowForwarding(bridge); err != nil {
			b.cfg.Note(err.Error() + ": pods may not reach beyond this machine")
		}
	}
	return networkConfig{
		Name:    bridge,
		Bridge:  bridge,
		Subnet:  subnet,
		IPAMDir: b.ipamDir(),
		Backend: backend,
	}, nil
}

// subnet claims a network. It removes a bridge of another network without pods, because the bridge plugin refuses a
// bridge with another address.
func (b *Bundle) subnet(bridge string) (netip.Prefix, error) {
	want := wantedNetwork{Configured: b.cfg.PodNetwork, Last: b.lastSubnet()}
	bridged := networkOf(bridge)
	pods, err := ports(bridge)
	if err != nil {
		return netip.Prefix{}, err
	}
	if pods > 0 {
		want.Running = bridged
	}
	taken, err := occupation(bridge)
	if err != nil {
		return netip.Prefix{}, err
	}
	subnet, err := claims{claimsDir}.choose(b.cfg.Layout, want, taken)
	if err != nil || !bridged.IsValid() || bridged == subnet {
		return subnet, err
	}
	return subnet, removeBridge(bridge)
}

// lastSubnet returns the network in the configuration of the last run; zero if there is none or it cannot be read.
func (b *Bundle) lastSubnet() netip.Prefix {
	content, err := os.ReadFile(b.networkConfigFile())
	if err != nil {
		return netip.Prefix{}
	}
	var last struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct{ Subnet netip.Prefix }
			}
		}
	}
	if json.Unmarshal(content, &last) != nil || len(last.Plugins) == 0 {
		return netip.Prefix{}
	}
	if ranges := last.Plugins[0].IPAM.Ranges; len(ranges) > 0 && len(ranges[0]) > 0 {
		return ranges[0][0].Subnet
	}
	return netip.Prefix{}
}

func (b *Bundle) removeNetwork() error {
	bridge := bridgeName(b.cfg.Layout)
	return errors.Join(
		endForwarding(bridge),
		endMasquerading(bridge),
		removeBridge(bridge),
		claims{claimsDir}.release(b.cfg.Layout),
	)
}

// bridgeName returns the link's name, at most 15 bytes, the limit of the kernel.
func bridgeName(l layout.Layout) string {
	if l.IsDefault() {
		return "quartet0"
	}
	return "quartet-" + l.ID()[:7]
}

// render returns the CNI configuration: a bridge with host-local addresses and port mapping. Port mapping is included
// even without a packet filter, so that a pod with a hostPort fails visibly instead of being unreachable.
func (n networkConfig) render() (string, error) {
	bridge := map[string]any{
		"type":        "bridge",
		"bridge":      n.Bridge,
		"isGateway":   true,
		"ipMasq":      n.Backend != "",
		"hairpinMode": true,
		"ipam": map[string]any{
			"type":    "host-local",
			"dataDir": n.IPAMDir,
			"ranges":  [][]map[string]string{{{"subnet": n.Subnet.String()}}},
			"routes":  []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	}
	portmap := map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}}
	if n.Backend != "" {
		bridge["ipMasqBackend"] = n.Backend
		portmap["backend"] = n.Backend
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(map[string]any{
		"cniVersion": "1.0.0",
		"name":       n.Name,
		"plugins":    []any{bridge, portmap},
	})
	if err != nil {
		return "", fmt.Errorf("writing the network's configuration: %w", err)
	}
	return out.String(), nil
}
