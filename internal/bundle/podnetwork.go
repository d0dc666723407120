package bundle

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// sliceBits is the prefix length of a node's network: a /23 has 509 addresses for pods.
	sliceBits = 23
	// mostBits is the prefix length of the smallest network with an address for a pod, besides those of the network, the
	// bridge and the broadcast.
	mostBits = 30
)

// podRanges are the private ranges from which a node chooses its network if the configuration names none, in this
// order. They exclude common networks: the defaults of other programs for services, pods and virtual machines. They
// include parts of all three private blocks, because a route of an organization may cover a whole block.
var podRanges = []netip.Prefix{
	netip.MustParsePrefix("10.88.0.0/16"), // the only range of earlier versions, and podman's default
	netip.MustParsePrefix("10.188.0.0/16"),
	netip.MustParsePrefix("10.218.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/16"),
	netip.MustParsePrefix("192.168.208.0/20"),
}

// PodNetwork returns the network of --pod-cidr, or else podCIDR of a KubeletConfiguration file, whose path may be
// empty. It returns the zero prefix if neither is set; then the node chooses.
func PodNetwork(flag, file string) (netip.Prefix, error) {
	if flag != "" || file == "" {
		return parsePodNetwork("--pod-cidr", flag)
	}
	content, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("reading the file of --config: %w", err)
	}
	// Only this field is validated here. The services validate the other fields when they start.
	var config struct {
		PodCIDR string `json:"podCIDR"`
	}
	if err := yaml.Unmarshal(content, &config); err != nil {
		return netip.Prefix{}, fmt.Errorf("reading the file of --config: %s: %w", file, err)
	}
	return parsePodNetwork(file+": podCIDR", config.PodCIDR)
}

// parsePodNetwork parses one IPv4 network, or one of each family separated by a comma, and returns the IPv4 network.
func parsePodNetwork(field, text string) (netip.Prefix, error) {
	network, err := ipv4Network(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%s: %w", field, err)
	}
	return network, nil
}

func ipv4Network(text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	var found netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(part))
		switch {
		case err != nil:
			return netip.Prefix{}, fmt.Errorf("%q is not a network: write one as 10.200.0.0/24", part)
		case !prefix.Addr().Is4():
			continue
		case found.IsValid():
			return netip.Prefix{}, fmt.Errorf("%q has two IPv4 networks: name one", text)
		case prefix.Bits() > mostBits:
			return netip.Prefix{}, fmt.Errorf("%s has no room for pods: it must be a /%d or larger", prefix, mostBits)
		}
		found = prefix.Masked()
	}
	if !found.IsValid() {
		return netip.Prefix{}, fmt.Errorf("%q has no IPv4 network: the bundled runtime gives pods IPv4 addresses", text)
	}
	return found, nil
}

// wantedNetwork holds the inputs to the choice of a node's network.
type wantedNetwork struct {
	// Configured is the range of the flag or the configuration; zero if the node chooses.
	Configured netip.Prefix
	// Running is the network of the pods that exist now; zero without pods.
	Running netip.Prefix
	// Last is the network of the last run; zero before the first.
	Last netip.Prefix
}

// claims is the directory with a file for each network in use. The file names the owning state directory.
type claims struct{ dir string }

// choose selects and claims a network for a node. A lock on the directory serializes nodes, so that two that start at
// once get different networks. A node keeps its network unless the configuration names another, or something else on
// the machine has taken it while no pod ran. A claim whose state directory is gone is void.
func (c claims) choose(l layout.Layout, want wantedNetwork, taken []occupied) (subnet netip.Prefix, err error) {
	if err := os.MkdirAll(c.dir, socketDirMode); err != nil {
		return subnet, fmt.Errorf("claiming a network: %w", err)
	}
	lock, err := os.Open(filepath.Clean(c.dir))
	if err != nil {
		return subnet, fmt.Errorf("claiming a network: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return subnet, fmt.Errorf("locking %s: %w", c.dir, err)
	}
	own, others, err := c.read(l.StateDir())
	if err != nil {
		return subnet, err
	}
	if subnet, err = pick(own, want, firstSlice(l), append(others, taken...)); err != nil {
		return netip.Prefix{}, fmt.Errorf("%w; the files of nodes are in %s", err, c.dir)
	}
	for _, prefix := range own {
		if prefix == subnet {
			continue
		}
		if err := os.Remove(c.path(prefix)); err != nil {
			return netip.Prefix{}, fmt.Errorf("releasing the network %s: %w", prefix, err)
		}
	}
	if err := statedir.WriteIfChanged(c.path(subnet), []byte(l.StateDir()), fileMode); err != nil {
		return netip.Prefix{}, fmt.Errorf("claiming the network %s: %w", subnet, err)
	}
	return subnet, nil
}

// pick selects a network from the node's claims, the wanted network and the networks in use. It does no I/O.
func pick(own []netip.Prefix, want wantedNetwork, first int, taken []occupied) (netip.Prefix, error) {
	switch {
	case want.Configured.IsValid() && want.Running.IsValid() && want.Running != want.Configured:
		return netip.Prefix{}, fmt.Errorf(
			"pods of this node have addresses of %s, so that their network cannot become %s: end them with quartet down first",
			want.Running,
			want.Configured,
		)
	case want.Configured.IsValid():
		if by, free := firstOverlap(want.Configured, taken); !free && want.Running != want.Configured {
			return netip.Prefix{}, fmt.Errorf(
				"the configured pod network %s is in use by %s: name a free one with --pod-cidr or podCIDR",
				want.Configured,
				by,
			)
		}
		return want.Configured, nil
	case want.Running.IsValid():
		return want.Running, nil
	}
	for _, before := range append(own, want.Last) {
		if _, free := firstOverlap(before, taken); free && before.IsValid() {
			return before, nil
		}
	}
	var inTheWay []string
	for _, all := range podRanges {
		var by string
		for i := range sliceCount(all) {
			subnet := slice(all, (first+i)%sliceCount(all))
			user, free := firstOverlap(subnet, taken)
			if free {
				return subnet, nil
			}
			by = user
		}
		inTheWay = append(inTheWay, fmt.Sprintf("%s by %s", all, by))
	}
	return netip.Prefix{}, fmt.Errorf(
		"every network that pods could have is in use: %s: name a free one with --pod-cidr or podCIDR, or end a node with quartet down",
		strings.Join(inTheWay, ", "),
	)
}

// firstOverlap returns the first user of a network that overlaps with subnet.
func firstOverlap(subnet netip.Prefix, taken []occupied) (by string, free bool) {
	for _, t := range taken {
		if t.Prefix.Overlaps(subnet) {
			return t.By, false
		}
	}
	return "", true
}

// read returns the claims of the node and those of other nodes. It ignores files that are no claims.
func (c claims) read(stateDir string) (own []netip.Prefix, others []occupied, err error) {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading which networks are in use: %w", err)
	}
	for _, e := range entries {
		prefix, ok := claimed(e.Name())
		if !ok {
			continue
		}
		owner, err := os.ReadFile(filepath.Join(c.dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("reading which networks are in use: %w", err)
		case string(owner) == stateDir:
			own = append(own, prefix)
		case exists(string(owner)):
			others = append(others, occupied{Prefix: prefix, By: "the node of " + string(owner)})
		}
	}
	return own, others, nil
}

// release removes the claims of a node.
func (c claims) release(l layout.Layout) error {
	own, _, err := c.read(l.StateDir())
	errs := []error{err}
	for _, prefix := range own {
		errs = append(errs, os.Remove(c.path(prefix)))
	}
	return errors.Join(errs...)
}

func (c claims) path(subnet netip.Prefix) string { return filepath.Join(c.dir, claimName(subnet)) }

// claimName returns the file name of a network's claim. Claims in the first range keep the numbers of earlier versions,
// so that nodes of two versions on one machine do not collide.
func claimName(subnet netip.Prefix) string {
	if subnet.Bits() == sliceBits && podRanges[0].Contains(subnet.Addr()) {
		return strconv.Itoa(int(subnet.Addr().As4()[2]) / 2)
	}
	return strings.ReplaceAll(subnet.String(), "/", "-")
}

// claimed returns the network of a claim's name.
func claimed(name string) (netip.Prefix, bool) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil && int(n) < sliceCount(podRanges[0]) {
		return slice(podRanges[0], int(n)), true
	}
	prefix, err := netip.ParsePrefix(strings.ReplaceAll(name, "-", "/"))
	return prefix, err == nil
}

// sliceCount returns the number of node networks in a range.
func sliceCount(all netip.Prefix) int { return 1 << (sliceBits - all.Bits()) }

// slice returns one node network of a range.
func slice(all netip.Prefix, index int) netip.Prefix {
	a := all.Addr().As4()
	a[1] += byte(2 * index >> 8) //nolint:gosec // index < sliceCount
	a[2] += byte(2 * index)      //nolint:gosec // a range begins at a multiple of its size
	return netip.PrefixFrom(netip.AddrFrom4(a), sliceBits)
}

// exists reports whether a path exists; true if that is uncertain.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// firstSlice returns the index at which the search in a range starts: 0 for the default node, otherwise a hash of the
// state directory.
func firstSlice(l layout.Layout) int {
	if l.IsDefault() {
		return 0
	}
	n, err := strconv.ParseUint(l.ID(), 16, 64)
	if err != nil {
		return 1
	}
	return 1 + int(n%uint64(sliceCount(podRanges[0])-1)) //nolint:gosec // less than sliceCount
}
