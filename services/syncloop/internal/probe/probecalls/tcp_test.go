package probecalls_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// reset closes a connection so that the other end gets an error.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // on failure, the other end gets an EOF instead
	}
	_ = conn.Close() // the other end may have closed it
}

func TestAConnectionThatIsTakenIsASuccess(t *testing.T) {
	listener, refusing := listen(t, "127.0.0.1:0"), unusedAddress(t)
	host, port := split(t, listener.Addr())
	for _, c := range []struct {
		name string
		to   net.Addr
		tcp  v1.TCPSocketAction
		want want
	}{
		{"a number", listener.Addr(), v1.TCPSocketAction{Port: intstr.FromInt32(port)}, want{outcome: probecalls.Success}},
		{"a name", listener.Addr(), v1.TCPSocketAction{Port: named()}, want{outcome: probecalls.Success}},
		{"another host", &net.TCPAddr{IP: net.ParseIP("198.51.100.1"), Port: int(port)}, v1.TCPSocketAction{Port: named(), Host: host}, want{outcome: probecalls.Success}},
		{"refused", refusing, v1.TCPSocketAction{Port: named()}, want{outcome: probecalls.Failure, output: fmt.Sprintf("dial tcp %s: connect: connection refused", refusing)}},
		{"no such name", listener.Addr(), v1.TCPSocketAction{Port: intstr.FromString("gone")}, want{outcome: probecalls.Unknown, output: `tcpSocket: port "gone" not found`}},
		{"no port", listener.Addr(), v1.TCPSocketAction{Port: intstr.FromInt32(70000)}, want{outcome: probecalls.Unknown, output: "invalid port number: 70000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.check(t, newRig(t).Probe(t.Context(), target(t, c.to, v1.ProbeHandler{TCPSocket: &c.tcp})))
		})
	}
}

func TestAnUnansweredConnectionFailsInTime(t *testing.T) {
	t.Parallel()
	// The accept queue of length one is full, so further connections are not answered.
	address := full(t)
	to := target(t, address, v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}})
	to.Probe.TimeoutSeconds = 1
	began := time.Now()
	want{outcome: probecalls.Failure, output: fmt.Sprintf("dial tcp %s: i/o timeout", address)}.check(t, newRig(t).Probe(t.Context(), to))
	soon(t, began)
}

// full returns the address of a listener whose accept queue is full, so that further connections are not answered.
func full(t *testing.T) net.Addr {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) }) // nothing depends on it
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	inet, ok := name.(*unix.SockaddrInet4)
	if !ok {
		t.Fatalf("the socket is at %v", name)
	}
	address := &net.TCPAddr{IP: inet.Addr[:], Port: inet.Port}
	for range 10 {
		conn, err := net.DialTimeout("tcp", address.String(), time.Second)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = conn.Close() }) // nothing depends on it
	}
	t.Fatal("the queue is never full")
	return nil
}
