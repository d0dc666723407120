package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// sliceCount is how many nodes fit side by side into 10.88.0.0/16: each has a /23, 509 pods.
	sliceCount = 128
	// claimsDir has a file for each slice in use that names the state directory it belongs to.
	claimsDir = "/run/quartet/networks"
)

// networkConfig is all that the CNI configuration depends on.
type networkConfig struct {
	// Name is the network's, and Bridge the link's.
	Name, Bridge string
	// Subnet is where pods get their addresses.
	Subnet netip.Prefix
	// IPAMDir keeps the addresses in use.
	IPAMDir string
	// Backend does masquerading and port mapping: "iptables", "nftables", or empty when the machine has neither.
	Backend string
}

// network chooses the node's network: the one that it already has a claim on, else a slice that is free.
func (b *Bundle) network() (networkConfig, error) {
	bridge := bridgeName(b.cfg.Layout)
	index, err := claimSlice(claimsDir, b.cfg.Layout, func(index int) bool { return sliceInUse(index, bridge) })
	if err != nil {
		return networkConfig{}, err
	}
	backend := machine.This().PacketFilter()
	if backend == "" {
		b.cfg.Note("neither iptables nor nft is installed: pods reach each other and this machine, but not beyond it, " +
			"and a hostPort fails; install iptables to have both")
	}
	if err := ensureBridge(bridge); err != nil {
		return networkConfig{}, fmt.Errorf("making the bridge %s: %w: the kernel needs CONFIG_BRIDGE (modprobe bridge)", bridge, err)
	}
	if backend == "iptables" {
		if err := allowForwarding(bridge); err != nil {
			b.cfg.Note(err.Error() + ": pods may not reach beyond this machine")
		}
	}
	return networkConfig{
		Name:    bridge,
		Bridge:  bridge,
		Subnet:  sliceSubnet(index),
		IPAMDir: b.ipamDir(),
		Backend: backend,
	}, nil
}

func (b *Bundle) removeNetwork() error {
	bridge := bridgeName(b.cfg.Layout)
	return errors.Join(endForwarding(bridge), endMasquerading(bridge), removeBridge(bridge), releaseSlices(claimsDir, b.cfg.Layout))
}

// bridgeName is the link's name: at most the 15 bytes that the kernel allows.
func bridgeName(l layout.Layout) string {
	if l.IsDefault() {
		return "quartet0"
	}
	return "quartet-" + l.ID()[:7]
}

func sliceSubnet(index int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88, byte(2 * index), 0}), 23) //nolint:gosec // index < 128
}

// sliceName is the name of a slice's claim.
func sliceName(index int) string { return strconv.Itoa(index) }

// claimSlice finds a slice for the node and claims it by a file. A lock on the directory lets one node look at a time, so
// that two that start at once get two slices. A claim whose state directory is gone is void.
func claimSlice(dir string, l layout.Layout, inUse func(int) bool) (index int, err error) {
	if err := os.MkdirAll(dir, socketDirMode); err != nil {
		return 0, fmt.Errorf("claiming a network: %w", err)
	}
	lock, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return 0, fmt.Errorf("claiming a network: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return 0, fmt.Errorf("locking %s: %w", dir, err)
	}
	first := firstSlice(l)
	for i := range sliceCount {
		index := (first + i) % sliceCount
		path := filepath.Join(dir, sliceName(index))
		owner, err := os.ReadFile(filepath.Clean(path))
		if err == nil && string(owner) == l.StateDir() {
			return index, nil
		}
		if (err == nil && exists(string(owner))) || inUse(index) {
			continue
		}
		if err := statedir.WriteFileAtomic(path, []byte(l.StateDir()), fileMode); err != nil {
			return 0, fmt.Errorf("claiming a network: %w", err)
		}
		return index, nil
	}
	return 0, fmt.Errorf("all %d networks of 10.88.0.0/16 are in use: end a node with quartet down, or remove its file from %s",
		sliceCount, dir)
}

// exists is true unless a path is certain not to be there.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// firstSlice is where the search starts: the default node's is the first, another's is spread by its directory.
func firstSlice(l layout.Layout) int {
	if l.IsDefault() {
		return 0
	}
	n, err := strconv.ParseUint(l.ID(), 16, 64)
	if err != nil {
		return 1
	}
	return 1 + int(n%(sliceCount-1))
}

func releaseSlices(dir string, l layout.Layout) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("giving the network back: %w", err)
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if owner, err := os.ReadFile(filepath.Clean(path)); err == nil && string(owner) == l.StateDir() {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// sliceInUse is true when another link of the machine already has an address in the slice.
func sliceInUse(index int, own string) bool {
	links, err := net.Interfaces()
	if err != nil {
		return false
	}
	subnet := sliceSubnet(index)
	for _, link := range links {
		if link.Name == own {
			continue
		}
		addrs, err := link.Addrs()
		if err != nil {
			continue
		}
		for _, addr := range addrs {
			if prefix, err := netip.ParsePrefix(addr.String()); err == nil && prefix.Overlaps(subnet) {
				return true
			}
		}
	}
	return false
}

// render writes the CNI configuration: a bridge with addresses by host-local, and port mapping. Port mapping stays in
// without a packet filter, so that a pod with a hostPort fails and says so, rather than run unreachable.
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
