package nodeip

import (
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
)

// routeTables are the kernel's tables of routes, see proc_pid_net(5). A machine may lack that of IPv6.
func routeTables() []string { return []string{"/proc/net/route", "/proc/net/ipv6_route"} }

// routed finds the address of the default route, and searches again only when the routes have changed or the machine
// has lost the address. A search lists every interface several times, and each pod has one.
type routed struct {
	// search finds it.
	search func(unspecified net.IP) (net.IP, error)
	// tables returns a sum of the tables of routes.
	tables func() ([sha256.Size]byte, error)
	// holds reports whether the machine has an address.
	holds func(net.IP) bool

	ip  net.IP
	sum [sha256.Size]byte
}

// find is Config.Route for one unspecified address.
func (r *routed) find(unspecified net.IP) (net.IP, error) {
	sum, err := r.tables()
	if err != nil {
		return r.search(unspecified)
	}
	if r.ip != nil && sum == r.sum && r.holds(r.ip) {
		return r.ip, nil
	}
	ip, err := r.search(unspecified)
	r.ip, r.sum = ip, sum
	return ip, err
}

// sumOfTables returns a sum of the content of files, of which some may be missing.
func sumOfTables(files []string) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, name := range files {
		file, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return sum, err
		}
		_, err = io.Copy(h, file)
		if err = errors.Join(err, file.Close()); err != nil {
			return sum, err
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// canBind reports whether a socket can be bound to an address, which is so if the machine has it.
func canBind(ip net.IP) bool {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip})
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
