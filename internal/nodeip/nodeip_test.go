package nodeip

import (
	"context"
	"errors"
	"net"
	"testing"
)

// TestTheAddressOfTheNode checks the kubelet's order: the name, the address of the name, the default route.
func TestTheAddressOfTheNode(t *testing.T) {
	own := []net.Addr{
		&net.IPNet{IP: net.ParseIP("127.0.0.1")}, &net.IPNet{IP: net.ParseIP("10.0.0.5")},
		&net.IPNet{IP: net.ParseIP("192.168.56.10")},
		&net.IPNet{IP: net.ParseIP("fd00::5")}, &net.IPNet{IP: net.ParseIP("fe80::5")},
	}
	for name, test := range map[string]struct {
		node, family string
		resolves     []string
		want         string
	}{
		"the name is an address":                 {"192.168.56.10", "", nil, "192.168.56.10"},
		"the name has no address":                {"node-1", "", nil, "10.0.0.5"},
		"the name has another interface's":       {"node-1", "", []string{"192.168.56.10"}, "192.168.56.10"},
		"the name has the loopback interface's":  {"node-1", "", []string{"127.0.1.1", "127.0.0.1"}, "10.0.0.5"},
		"the name has another machine's":         {"node-1", "", []string{"203.0.113.9"}, "10.0.0.5"},
		"the name has one that is of the link":   {"node-1", "", []string{"fe80::5"}, "10.0.0.5"},
		"IPv4 is preferred":                      {"node-1", "", []string{"fd00::5", "192.168.56.10"}, "192.168.56.10"},
		"IPv4 is asked for":                      {"node-1", "0.0.0.0", []string{"fd00::5", "192.168.56.10"}, "192.168.56.10"},
		"IPv6 is asked for":                      {"node-1", "::", []string{"192.168.56.10", "fd00::5"}, "fd00::5"},
		"only the other family":                  {"node-1", "", []string{"fd00::5"}, "fd00::5"},
		"IPv6 is asked for, and of no name":      {"node-1", "::", nil, "fd00::6"},
		"IPv6 is asked for, the name has IPv4's": {"node-1", "::", []string{"192.168.56.10"}, "192.168.56.10"},
	} {
		t.Run(name, func(t *testing.T) {
			f := New(Config{
				Name: test.node, NodeIP: test.family, Own: func() ([]net.Addr, error) { return own, nil },
				Lookup: func(_ context.Context, host string) ([]net.IP, error) {
					if len(test.resolves) == 0 {
						return nil, &net.DNSError{Name: host, IsNotFound: true}
					}
					var ips []net.IP
					for _, ip := range test.resolves {
						ips = append(ips, net.ParseIP(ip))
					}
					return ips, nil
				},
				Route: func(unspecified net.IP) (net.IP, error) {
					if unspecified.To4() == nil {
						return net.ParseIP("fd00::6"), nil
					}
					return net.ParseIP("10.0.0.5"), nil
				},
			})
			if got := f.Find(t.Context()); got.String() != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestNobodyIsAskedForAnAddressThatIsGiven, because the first Node waits for the answer, and new pods wait for the
// Node.
func TestNobodyIsAskedForAnAddressThatIsGiven(t *testing.T) {
	for nodeIP, want := range map[string]string{
		"192.168.56.10": "192.168.56.10", "192.168.56.10,fd00::5": "192.168.56.10", "fd00::5": "fd00::5",
	} {
		f := New(Config{
			Name: "node-1", NodeIP: nodeIP,
			Lookup: func(context.Context, string) ([]net.IP, error) {
				t.Errorf("%s: a name server was asked for the node's name", nodeIP)
				return nil, errors.New("no name server")
			},
			Route: func(net.IP) (net.IP, error) {
				t.Errorf("%s: the default route was searched", nodeIP)
				return nil, errors.New("no default route")
			},
		})
		if got := f.Find(t.Context()); got.String() != want {
			t.Errorf("%s: got %s, want %s", nodeIP, got, want)
		}
	}
}

// TestTheAddressStaysWhileNoNameServerAnswers, because the addresses of pods in the host's network depend on it.
func TestTheAddressStaysWhileNoNameServerAnswers(t *testing.T) {
	var failure error
	f := New(Config{
		Name: "node-1",
		Own:  func() ([]net.Addr, error) { return []net.Addr{&net.IPNet{IP: net.ParseIP("192.168.56.10")}}, nil },
		Lookup: func(context.Context, string) ([]net.IP, error) {
			if failure != nil {
				return nil, failure
			}
			return []net.IP{net.ParseIP("192.168.56.10")}, nil
		},
		Route: func(net.IP) (net.IP, error) { return nil, errors.New("no default route") },
	})
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, "192.168.56.10"},
		{&net.DNSError{IsTimeout: true}, "192.168.56.10"},
		{context.DeadlineExceeded, "192.168.56.10"},
		{&net.DNSError{IsNotFound: true}, "<nil>"},
	} {
		failure = test.err
		if got := f.Find(t.Context()); got.String() != test.want {
			t.Errorf("after %v: got %s, want %s", test.err, got, test.want)
		}
	}
}

func TestTheAddressOfThisMachine(t *testing.T) {
	ip := New(Config{Name: "no-such-node.invalid"}).Find(t.Context())
	if ip != nil && (ip.IsUnspecified() || ip.IsLoopback()) {
		t.Errorf("got %s, want neither a loopback address nor the unspecified one", ip)
	}
}
