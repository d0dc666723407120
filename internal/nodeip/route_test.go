package nodeip

import (
	"crypto/sha256"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestTheDefaultRouteIsSearchedWhenRoutesChange checks when the address is searched again.
func TestTheDefaultRouteIsSearchedWhenRoutesChange(t *testing.T) {
	v4, v6 := filepath.Join(t.TempDir(), "route"), filepath.Join(t.TempDir(), "ipv6_route")
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(v4, "default by eth0")
	searches, held := 0, true
	address, failure := net.IPv4(10, 0, 0, 5), error(nil)
	var unreadable error
	r := &routed{
		search: func(net.IP) (net.IP, error) { searches++; return address, failure },
		tables: func() ([sha256.Size]byte, error) {
			if unreadable != nil {
				return [sha256.Size]byte{}, unreadable
			}
			return sumOfTables([]string{v4, v6})
		},
		holds: func(net.IP) bool { return held },
	}
	for _, step := range []struct {
		name     string
		change   func()
		searches int
	}{
		{"at first", func() {}, 1},
		{"nothing has changed", func() {}, 1},
		{"another address by another route", func() { write(v4, "default by eth1"); address = net.IPv4(10, 0, 0, 6) }, 2},
		{"nothing has changed since", func() {}, 2},
		{"a route of IPv6", func() { write(v6, "default by eth1") }, 3},
		{"the address is lost", func() { held = false; address = net.IPv4(10, 0, 0, 7) }, 4},
		{"the routes cannot be read", func() { held = true; unreadable = errors.New("no /proc") }, 5},
		{"they can be read", func() { unreadable = nil }, 5},
		{"no route", func() { write(v4, ""); address, failure = nil, errors.New("no default route") }, 6},
		{"still none", func() {}, 7},
	} {
		step.change()
		ip, err := r.find(net.IPv4zero)
		if !ip.Equal(address) || !errors.Is(err, failure) || searches != step.searches {
			t.Errorf("%s: got %v, %v after %d searches, want %v, %v after %d", step.name, ip, err, searches, address, failure,
				step.searches)
		}
	}
}

func TestAnAddressOfThisMachineCanBeBound(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1": true, "203.0.113.9": false} {
		if got := canBind(net.ParseIP(address)); got != want {
			t.Errorf("%s: got %t, want %t", address, got, want)
		}
	}
	if _, err := sumOfTables(routeTables()); err != nil {
		t.Error(err)
	}
}
