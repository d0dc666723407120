package hostips_test

import (
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
)

func node(addresses ...v1.NodeAddress) *v1.Node {
	return &v1.Node{Status: v1.NodeStatus{Addresses: addresses}}
}

func internal(ip string) v1.NodeAddress { return v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip} }
func external(ip string) v1.NodeAddress { return v1.NodeAddress{Type: v1.NodeExternalIP, Address: ip} }

func TestAddressesOfANode(t *testing.T) {
	for name, tc := range map[string]struct {
		node *v1.Node
		want []string
	}{
		"none":                     {node(v1.NodeAddress{Type: v1.NodeHostName, Address: "node-1"}), nil},
		"one":                      {node(internal("192.0.2.1")), []string{"192.0.2.1"}},
		"both families":            {node(internal("192.0.2.1"), internal("2001:db8::1")), []string{"192.0.2.1", "2001:db8::1"}},
		"IPv6 first":               {node(internal("2001:db8::1"), internal("192.0.2.1")), []string{"2001:db8::1", "192.0.2.1"}},
		"two of one family":        {node(internal("192.0.2.1"), internal("192.0.2.2")), []string{"192.0.2.1"}},
		"external is second":       {node(external("203.0.113.1"), internal("192.0.2.1")), []string{"192.0.2.1"}},
		"external alone":           {node(external("203.0.113.1")), []string{"203.0.113.1"}},
		"external of other family": {node(external("2001:db8::1"), internal("192.0.2.1")), []string{"192.0.2.1", "2001:db8::1"}},
		"a name is no address":     {node(internal("node-1"), internal("192.0.2.1")), []string{"192.0.2.1"}},
	} {
		if got := hostips.Of(tc.node); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func TestTheLastAddressesStayAndTheNodesWordWins(t *testing.T) {
	var reported [][]string
	a := hostips.New(func() []string { return []string{"192.0.2.9"} })
	a.Detect()
	a.OnChange(func(ips []string) { reported = append(reported, ips) })
	a.Learn(node(internal("192.0.2.1"), internal("2001:db8::1")))
	a.Learn(node(internal("192.0.2.1"), internal("2001:db8::1")))
	a.Learn(node())
	a.Learn(node(internal("192.0.2.2")))
	want := [][]string{{"192.0.2.9"}, {"192.0.2.1", "2001:db8::1"}, {"192.0.2.2"}}
	if !slices.EqualFunc(reported, want, slices.Equal) || !slices.Equal(a.Get(), want[2]) {
		t.Errorf("reported %q, want %q; now %q", reported, want, a.Get())
	}
}

// TestStoredAddressesNeedNoDetection has the addresses of the last Node from the start. A detection may wait for a name
// server, and takes longer with each pod.
func TestStoredAddressesNeedNoDetection(t *testing.T) {
	a := hostips.New(func() []string {
		t.Error("the addresses of the machine were read")
		return nil
	})
	a.Take([]string{"192.0.2.1"})
	a.Detect()
	if err := a.Run(t.Context(), clock.RealClock{}); err != nil || !slices.Equal(a.Get(), []string{"192.0.2.1"}) {
		t.Errorf("Get() = %q (%v), want the stored address", a.Get(), err)
	}
}

// TestARouteThatComesLaterIsFound checks that a default route that is added after the start is found without
// nodestatus.
func TestARouteThatComesLaterIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		a := hostips.New(func() []string {
			if calls++; calls < 4 {
				return nil
			}
			return []string{"192.0.2.1"}
		})
		if err := a.Run(t.Context(), clock.RealClock{}); err != nil || !slices.Equal(a.Get(), []string{"192.0.2.1"}) {
			t.Errorf("Get() = %q (%v), want %q", a.Get(), err, []string{"192.0.2.1"})
		}
	})
}
