package bundle

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// Nodes that start at the same time get different networks. Each keeps its own until it is removed.
func TestNetworksAreClaimedOnce(t *testing.T) {
	all := claims{t.TempDir()}
	const nodes = 40
	states := t.TempDir()
	got := make([]netip.Prefix, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		dir := filepath.Join(states, string(rune('A'+i)))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			subnet, err := all.choose(layoutAt(t, dir), wantedNetwork{}, nil)
			if err != nil {
				t.Error(err)
			}
			got[i] = subnet
		})
	}
	wg.Wait()
	for i, subnet := range got {
		for j := range i {
			if subnet.Overlaps(got[j]) {
				t.Errorf("nodes %d and %d have the networks %s and %s", i, j, subnet, got[j])
			}
		}
	}
	first := layoutAt(t, filepath.Join(states, "A"))
	if again, err := all.choose(first, wantedNetwork{}, nil); err != nil || again != got[0] {
		t.Errorf("the first node has %s and gets %s (%v)", got[0], again, err)
	}
	if err := all.release(first); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(all.dir); err != nil || len(left) != nodes-1 {
		t.Errorf("%d claims are left of %d (%v)", len(left), nodes-1, err)
	}
}

func TestAClaimOfAGoneNodeIsVoid(t *testing.T) {
	dir := t.TempDir()
	for i := range sliceCount(podRanges[0]) {
		write(t, dir, claimName(slice(podRanges[0], i)), "/no/such/node")
	}
	if got, err := (claims{dir}).choose(
		layoutAt(t, t.TempDir()),
		wantedNetwork{},
		nil,
	); err != nil ||
		!podRanges[0].Contains(got.Addr()) {
		t.Errorf("choose() = %v (%v), want a network in %v", got, err, podRanges[0])
	}
}

// A claim of an earlier version, whose name is a number, is a network of 10.88.0.0/16.
func TestClaimsOfEarlierVersionsHold(t *testing.T) {
	dir, other, own := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, dir, "54", other)
	write(t, dir, "55", own)
	_, err := claims{dir}.choose(layoutAt(t, t.TempDir()), wantedNetwork{Configured: prefix("10.88.109.0/24")}, nil)
	if err == nil || !strings.Contains(err.Error(), "the node of "+other) {
		t.Errorf("a network of another node is given away: %v", err)
	}
	got, err := (claims{dir}).choose(layoutAt(t, own), wantedNetwork{}, nil)
	if err != nil || got != prefix("10.88.110.0/23") {
		t.Errorf("the node has 10.88.110.0/23 and gets %v (%v)", got, err)
	}
}

func TestNetworkIsTheFirstThatNothingUses(t *testing.T) {
	podman := occupied{prefix("10.88.0.0/16"), "the interface podman0 (10.88.0.1/16)"}
	vpn := occupied{prefix("10.0.0.0/8"), "the route to 10.0.0.0/8 over the interface tun0"}
	for name, tc := range map[string]struct {
		own   []netip.Prefix
		want  wantedNetwork
		taken []occupied
		get   string
		err   []string
	}{
		"nothing is used":           {get: "10.88.0.0/23"},
		"podman's default":          {taken: []occupied{podman}, get: "10.188.0.0/23"},
		"a slice is used":           {taken: []occupied{{prefix("10.88.1.0/24"), "x"}}, get: "10.88.2.0/23"},
		"a whole private block":     {taken: []occupied{vpn}, get: "172.16.0.0/23"},
		"two blocks":                {taken: []occupied{vpn, {prefix("172.16.0.0/12"), "x"}}, get: "192.168.208.0/23"},
		"the last one":              {want: wantedNetwork{Last: prefix("10.188.4.0/23")}, get: "10.188.4.0/23"},
		"the last one is used":      {want: wantedNetwork{Last: prefix("10.88.4.0/23")}, taken: []occupied{podman}, get: "10.188.0.0/23"},
		"its own claim":             {own: []netip.Prefix{prefix("10.188.6.0/23")}, want: wantedNetwork{Last: prefix("10.188.4.0/23")}, get: "10.188.6.0/23"},
		"pods run":                  {want: wantedNetwork{Running: prefix("10.88.4.0/23")}, taken: []occupied{podman}, get: "10.88.4.0/23"},
		"configured":                {want: wantedNetwork{Configured: prefix("10.200.0.0/24")}, get: "10.200.0.0/24"},
		"configured and pods run":   {want: wantedNetwork{Configured: prefix("10.88.4.0/23"), Running: prefix("10.88.4.0/23")}, taken: []occupied{podman}, get: "10.88.4.0/23"},
		"configured after a choice": {own: []netip.Prefix{prefix("10.88.6.0/23")}, want: wantedNetwork{Configured: prefix("10.200.0.0/24"), Last: prefix("10.88.6.0/23")}, get: "10.200.0.0/24"},
		"configured and used": {
			want: wantedNetwork{Configured: prefix("10.88.3.0/24")}, taken: []occupied{podman},
			err: []string{"10.88.3.0/24", "podman0 (10.88.0.1/16)", "--pod-cidr"},
		},
		"configured otherwise while pods run": {
			want: wantedNetwork{Configured: prefix("10.200.0.0/24"), Running: prefix("10.88.4.0/23")},
			err:  []string{"10.88.4.0/23", "10.200.0.0/24", "quartet down"},
		},
		"all are used": {
			taken: []occupied{podman, vpn, {prefix("172.16.0.0/12"), "the interface eth1 (172.16.3.4/12)"}, {prefix("192.168.0.0/16"), "the interface eth0 (192.168.1.2/16)"}},
			err:   []string{"10.88.0.0/16 by the interface podman0 (10.88.0.1/16)", "tun0", "eth1", "eth0", "--pod-cidr", "quartet down"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := pick(tc.own, tc.want, 0, tc.taken)
			if tc.err == nil {
				if err != nil || got != prefix(tc.get) {
					t.Errorf("got %v (%v), want %s", got, err, tc.get)
				}
				return
			}
			for _, part := range tc.err {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("the error lacks %q: %v", part, err)
				}
			}
		})
	}
}

func TestSlicesAreDisjointAndWithin(t *testing.T) {
	seen := map[netip.Prefix]bool{}
	for _, all := range podRanges {
		for i := range sliceCount(all) {
			s := slice(all, i)
			if !all.Overlaps(s) || s.Masked() != s || seen[s] {
				t.Fatalf("slice %d of %s is %s", i, all, s)
			}
			seen[s] = true
			if got, ok := claimed(claimName(s)); !ok || got != s {
				t.Fatalf("the claim of %s is named %s, which means %s", s, claimName(s), got)
			}
		}
	}
}

func TestPodNetworkOfFlagAndFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	write(t, filepath.Dir(file), "kubelet.yaml", "kind: KubeletConfiguration\npodCIDR: 10.201.0.7/24,fd00::/64\n")
	for _, tc := range []struct{ flag, file, want, err string }{
		{want: "invalid Prefix"},
		{file: file, want: "10.201.0.0/24"},
		{flag: "10.200.0.0/24", file: file, want: "10.200.0.0/24"},
		{flag: "10.200.0.0", err: "--pod-cidr: \"10.200.0.0\" is not a network"},
		{flag: "10.200.0.0/31", err: "no room for pods"},
		{flag: "fd00::/64", err: "no IPv4 network"},
		{flag: "10.0.0.0/24,10.1.0.0/24", err: "two IPv4 networks"},
		{file: "/no/such/file", err: "/no/such/file"},
	} {
		got, err := PodNetwork(tc.flag, tc.file)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%+v: PodNetwork() error = %v, want an error with %q", tc, err, tc.err)
			}
			continue
		}
		if err != nil || got.String() != tc.want {
			t.Errorf("%+v: PodNetwork() = %v (%v), want %v", tc, got, err, tc.want)
		}
	}
}

// inNetworkNamespace runs do on a thread with a network namespace of its own, after some commands of ip(8) in it. The
// thread and the network end with do.
func inNetworkNamespace(t *testing.T, do func(), commands ...string) {
	t.Helper()
	_, err := exec.LookPath("ip")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("making a network namespace: %v", err)
			return
		}
		for _, command := range commands {
			if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", command, err, out)
				return
			}
		}
		do()
	}()
	<-done
}

// Podman's bridge and the route of a VPN on the machine are left alone, and the error names them.
func TestNetworksOfTheMachineAreNotTaken(t *testing.T) {
	inNetworkNamespace(
		t,
		func() {
			taken, err := occupation("quartet0")
			if err != nil {
				t.Error(err)
				return
			}
			got, err := pick(nil, wantedNetwork{}, 0, taken)
			if err != nil || got != prefix("172.16.0.0/23") {
				t.Errorf("got %v (%v), want the first range that is neither podman's nor the VPN's; taken: %+v", got, err, taken)
			}
			for configured, by := range map[string]string{
				"10.88.200.0/24": "the interface podman0 (10.88.0.1/16)",
				"10.218.0.0/24":  "the route to 10.128.0.0/9 over the interface tun0",
				"10.60.0.0/24":   "the route to 10.60.0.0/16",
			} {
				if _, err := pick(
					nil,
					wantedNetwork{Configured: prefix(configured)},
					0,
					taken,
				); err == nil ||
					!strings.Contains(err.Error(), by) {
					t.Errorf("%s: the error does not name %s: %v", configured, by, err)
				}
			}
			if n, err := ports("quartet0"); err != nil || n != 1 {
				t.Errorf("quartet0 has %d ports (%v), want 1", n, err)
			}
			if n, err := ports("podman0"); err != nil || n != 0 {
				t.Errorf("podman0 has %d ports (%v), want none", n, err)
			}
			if got := networkOf("quartet0"); got != prefix("172.16.0.0/23") {
				t.Errorf("the network of quartet0 is %v", got)
			}
		},
		"link set lo up",
		"link add podman0 type bridge",
		"addr add 10.88.0.1/16 dev podman0",
		"link set podman0 up",
		"link add tun0 type bridge",
		"addr add 192.0.2.1/24 dev tun0",
		"link set tun0 up",
		"route add default via 192.0.2.254",
		"route add 10.128.0.0/9 via 192.0.2.254 table 77",
		"route add blackhole 10.60.0.0/16",
		"link add quartet0 type bridge",
		"addr add 172.16.0.1/23 dev quartet0",
		"link set quartet0 up",
		"link add pod type veth peer name eth9",
		"link set pod master quartet0",
	)
}
