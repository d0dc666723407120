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
	// sliceBits is the length of the prefix of a node's network: a /23 has 509 addresses for pods.
	sliceBits = 23
	// mostBits is the length of the smallest network that has an address for a pod, beside those of the network, of the
	// bridge and of the broadcast.
	mostBits = 30
)

// podRanges are the private ranges in which a node looks for its network when no configuration names one, in this order.
// Networks that are often there are left out: the services, pods and virtual machines of other programs' defaults.
// The three private blocks are all among them, because a route of an organisation may cover a whole block.
var podRanges = []netip.Prefix{
	netip.MustParsePrefix("10.88.0.0/16"), // the only range of earlier versions, and podman's default
	netip.MustParsePrefix("10.188.0.0/16"),
	netip.MustParsePrefix("10.218.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/16"),
	netip.MustParsePrefix("192.168.208.0/20"),
}

// PodNetwork is the network of --pod-cidr, else that of podCIDR in a file with a KubeletConfiguration, which may have an empty
// path. It is the zero prefix when neither names one: then the node chooses.
func PodNetwork(flag, file string) (netip.Prefix, error) {
	if flag != "" || file == "" {
		return parsePodNetwork("--pod-cidr", flag)
	}
	content, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("reading the file of --config: %w", err)
	}
	// Only this field is checked here. The other fields are checked when the services start.
	var config struct {
		PodCIDR string `json:"podCIDR"`
	}
	if err := yaml.Unmarshal(content, &config); err != nil {
		return netip.Prefix{}, fmt.Errorf("reading the file of --config: %s: %w", file, err)
	}
	return parsePodNetwork(file+": podCIDR", config.PodCIDR)
}

// parsePodNetwork reads one IPv4 network, or one of each family separated by a comma, of which the IPv4 network counts.
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

// wish is what is known about a node's network before one is chosen.
type wish struct {
	// Configured is the range that a flag or the configuration names; zero when the node chooses.
	Configured netip.Prefix
	// Running is the network that pods have addresses of now; zero without pods.
	Running netip.Prefix
	// Last is the network of the last run; zero before the first.
	Last netip.Prefix
}

// claims is the directory with a file for each network in use that names the state directory that it belongs to.
type claims struct{ dir string }

// choose finds a network for a node and claims it. A lock on the directory lets one node choose at a time, so that two that
// start at once get two networks. A node keeps the network that it has, unless the configuration names another or something else
// of the machine has taken it while no pod ran. A claim whose state directory is gone is void.
func (c claims) choose(l layout.Layout, want wish, taken []occupied) (subnet netip.Prefix, err error) {
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
			return netip.Prefix{}, fmt.Errorf("giving the network %s back: %w", prefix, err)
		}
	}
	if err := statedir.WriteFileAtomic(c.path(subnet), []byte(l.StateDir()), fileMode); err != nil {
		return netip.Prefix{}, fmt.Errorf("claiming the network %s: %w", subnet, err)
	}
	return subnet, nil
}

// pick decides which network a node has, from its claims, what is wished and what is taken. It asks nobody.
func pick(own []netip.Prefix, want wish, first int, taken []occupied) (netip.Prefix, error) {
	switch {
	case want.Configured.IsValid() && want.Running.IsValid() && want.Running != want.Configured:
		return netip.Prefix{}, fmt.Errorf("pods of this node have addresses of %s, so that their network cannot become %s: end them by quartet down first",
			want.Running, want.Configured)
	case want.Configured.IsValid():
		if by, free := firstOverlap(want.Configured, taken); !free && want.Running != want.Configured {
			return netip.Prefix{}, fmt.Errorf("the configured pod network %s is in use by %s: name a free one with --pod-cidr or podCIDR", want.Configured, by)
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
	return netip.Prefix{}, fmt.Errorf("every network that pods could have is in use: %s: name a free one with --pod-cidr or podCIDR, or end a node with quartet down",
		strings.Join(inTheWay, ", "))
}

// firstOverlap names the first user of a part of a network.
func firstOverlap(subnet netip.Prefix, taken []occupied) (by string, free bool) {
	for _, t := range taken {
		if t.Prefix.Overlaps(subnet) {
			return t.By, false
		}
	}
	return "", true
}

// read returns the node's own claims and those of other nodes. A file that is no claim is left alone.
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

// release gives a node's networks back.
func (c claims) release(l layout.Layout) error {
	own, _, err := c.read(l.StateDir())
	errs := []error{err}
	for _, prefix := range own {
		errs = append(errs, os.Remove(c.path(prefix)))
	}
	return errors.Join(errs...)
}

func (c claims) path(subnet netip.Prefix) string { return filepath.Join(c.dir, claimName(subnet)) }

// claimName is the name of a network's claim. Those of the first range keep the numbers that earlier versions gave them, so
// that nodes of two versions on one machine do not meet.
func claimName(subnet netip.Prefix) string {
	if subnet.Bits() == sliceBits && podRanges[0].Contains(subnet.Addr()) {
		return strconv.Itoa(int(subnet.Addr().As4()[2]) / 2)
	}
	return strings.ReplaceAll(subnet.String(), "/", "-")
}

// claimed is the network that a claim's name means.
func claimed(name string) (netip.Prefix, bool) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil && int(n) < sliceCount(podRanges[0]) {
		return slice(podRanges[0], int(n)), true
	}
	prefix, err := netip.ParsePrefix(strings.ReplaceAll(name, "-", "/"))
	return prefix, err == nil
}

// sliceCount is how many nodes fit side by side into a range.
func sliceCount(all netip.Prefix) int { return 1 << (sliceBits - all.Bits()) }

// slice is one network of a range.
func slice(all netip.Prefix, index int) netip.Prefix {
	a := all.Addr().As4()
	a[1] += byte(2 * index >> 8) //nolint:gosec // index < sliceCount
	a[2] += byte(2 * index)      //nolint:gosec // a range begins at a multiple of its size
	return netip.PrefixFrom(netip.AddrFrom4(a), sliceBits)
}

// exists is true unless a path is certain not to be there.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// firstSlice is where the search in a range starts: the default node's is the first, another's is spread by its directory.
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
