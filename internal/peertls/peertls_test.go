package peertls_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// often is the interval in which these tests have certificates verified again.
const often = 5 * time.Millisecond

// host is the name of the server's machine.
const host = "node-1.test"

// pair is a server and a client with their logs.
type pair struct {
	server peertls.Server
	client peertls.Client
	log    *logbuffer.Buffer
}

func newPair(t *testing.T, server, client peertls.Files) pair {
	t.Helper()
	log := new(logbuffer.Buffer)
	logger := slog.New(slog.NewTextHandler(log, nil))
	s, err := peertls.Open(server)
	must(t, err)
	c, err := peertls.Open(client)
	must(t, err)
	return pair{
		server: peertls.NewServer(s, logger).Recheck(often),
		client: peertls.NewClient(c, "pleg", logger).Recheck(often),
		log:    log,
	}
}

// connect connects the two. The errors are those of the first read of each end, after its handshake.
func (p pair) connect(t *testing.T) (server, client net.Conn, serverErr, clientErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { must(t, listener.Close()) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := listener.Accept()
		if err != nil {
			serverErr = err
			return
		}
		if server, _, serverErr = p.server.ServerHandshake(raw); serverErr != nil {
			_ = raw.Close()
			return
		}
		_, serverErr = server.Write([]byte{1})
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	if client, _, clientErr = p.client.ClientHandshake(t.Context(), host+":7443", raw); clientErr == nil {
		_, clientErr = client.Read(make([]byte, 1))
	}
	if clientErr != nil {
		_ = raw.Close()
	}
	<-done
	for _, conn := range []net.Conn{server, client} {
		if conn != nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
	}
	return server, client, serverErr, clientErr
}

func TestAnEndWithAWrongCertificateIsRefused(t *testing.T) {
	ca, other := authority.New(t, "ca"), authority.New(t, "other")
	server := authority.Request{Name: host, Hosts: []string{host, "pleg"}}
	client := authority.Request{Name: "syncloop"}
	expired := func(r authority.Request) authority.Request {
		r.For = -time.Second
		return r
	}
	for name, tc := range map[string]struct {
		clientCA               *authority.Authority
		server, client         authority.Request
		serverWants, clientHas string
	}{
		"good":                              {ca, server, client, "", ""},
		"a client of another authority":     {other, server, client, "authority", "authority"},
		"an expired client":                 {ca, server, expired(client), "expired", "certificate"},
		"an expired server":                 {ca, expired(server), client, "certificate", "expired"},
		"a server of another host":          {ca, authority.Request{Hosts: []string{"node-2.test", "pleg"}}, client, "certificate", "not node-1.test"},
		"a server of another service":       {ca, authority.Request{Hosts: []string{host, "configmux"}}, client, "certificate", "and not for the service pleg"},
		"a server that is no server at all": {ca, client, client, "certificate", "not valid for any names"},
	} {
		t.Run(name, func(t *testing.T) {
			files := tc.clientCA.Issue(t, t.TempDir(), tc.client)
			authority.Trust(t, files.CA, ca)
			p := newPair(t, ca.Issue(t, t.TempDir(), tc.server), files)
			_, _, serverErr, clientErr := p.connect(t)
			for _, end := range []struct {
				name, want string
				err        error
			}{{"server", tc.serverWants, serverErr}, {"client", tc.clientHas, clientErr}} {
				if (end.err == nil) != (end.want == "") || end.err != nil && !strings.Contains(end.err.Error(), end.want) {
					t.Errorf("the %s gets %v, want %q", end.name, end.err, end.want)
				}
			}
			if refused := strings.Contains(p.log.String(), "refused a peer on the network"); refused != (tc.serverWants != "") {
				t.Errorf("the log of the server has\n%s", p.log.String())
			}
		})
	}
}

// TestAClientThatIsRefusedHearsWhy, also when it writes after the server has closed the connection.
func TestAClientThatIsRefusedHearsWhy(t *testing.T) {
	ca := authority.New(t, "ca")
	p := newPair(t, ca.Issue(t, t.TempDir(), authority.Request{Name: host, Hosts: []string{host, "pleg"}}),
		ca.Issue(t, t.TempDir(), authority.Request{Name: "syncloop", For: -time.Second}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { must(t, listener.Close()) }()
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		if raw, err := listener.Accept(); err == nil {
			_, _, _ = p.server.ServerHandshake(raw) // its error is in the log
			_ = raw.Close()
		}
	}()
	raw, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	client, _, err := p.client.ClientHandshake(t.Context(), host+":7443", raw)
	must(t, err)
	defer func() { _ = client.Close() }()
	<-refused
	for range 3 { // the first write succeeds, and has the other end answer that it is closed
		if _, err = client.Write([]byte("PRI")); err != nil {
			break
		}
		eventually.That(t, "the system knows that the connection is closed", func() bool { return closed(raw) })
	}
	if err == nil || !strings.Contains(err.Error(), "expired certificate") {
		t.Errorf("Write() = %v, want the reason", err)
	}
}

// closed reports whether the other end of a connection has refused what was sent.
func closed(conn net.Conn) bool {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return true
	}
	state := byte(0)
	if err := raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	}); err != nil {
		return true
	}
	const closed = 7 // TCP_CLOSE
	return state == closed
}

// TestFilesAreRotatedWhileConnectionsAreOpen: a new certificate and a new authority apply to the next connection, open
// ones stay, and they end when their authority is not trusted any more.
func TestFilesAreRotatedWhileConnectionsAreOpen(t *testing.T) {
	first, second := authority.New(t, "first"), authority.New(t, "second")
	atServer, atClient := t.TempDir(), t.TempDir()
	request := authority.Request{Name: host, Hosts: []string{host, "pleg"}}
	server, client := first.Issue(t, atServer, request), first.Issue(t, atClient, authority.Request{Name: "syncloop"})
	p := newPair(t, server, client)
	old, oldClient, serverErr, clientErr := p.connect(t)
	must(t, errors.Join(serverErr, clientErr))

	// Both trust both authorities, then both get certificates of the second.
	authority.Trust(t, server.CA, first, second)
	authority.Trust(t, client.CA, first, second)
	second.Issue(t, atServer, request)
	second.Issue(t, atClient, authority.Request{Name: "syncloop"})
	next, nextClient, serverErr, clientErr := p.connect(t)
	must(t, errors.Join(serverErr, clientErr))
	exchange(t, old, oldClient)
	exchange(t, next, nextClient)

	// A file that is half written changes nothing.
	must(t, os.WriteFile(server.Cert, []byte("-----BEGIN"), 0o600))
	_, _, serverErr, clientErr = p.connect(t)
	must(t, errors.Join(serverErr, clientErr))
	if !strings.Contains(p.log.String(), "their last good content stays in use") {
		t.Errorf("the log has\n%s", p.log.String())
	}

	// The first authority is not trusted any more.
	authority.Trust(t, server.CA, second)
	if _, err := oldClient.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection with the old certificate: %v, want its end", err)
	}
	exchange(t, next, nextClient)
	if !strings.Contains(p.log.String(), "the certificate of the peer is not valid any more") {
		t.Errorf("the log has\n%s", p.log.String())
	}
}

func TestAConnectionEndsWithTheCertificateOfItsPeer(t *testing.T) {
	ca := authority.New(t, "ca")
	const life = 2 * time.Second // the end in a certificate has whole seconds
	server := ca.Issue(t, t.TempDir(), authority.Request{Name: host, Hosts: []string{host, "pleg"}})
	client := ca.Issue(t, t.TempDir(), authority.Request{Name: "syncloop", For: life})
	_, atClient, serverErr, clientErr := newPair(t, server, client).connect(t)
	must(t, errors.Join(serverErr, clientErr))
	if _, err := atClient.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection: %v, want its end", err)
	}
}

func TestFilesThatAreNotGoodAtTheStart(t *testing.T) {
	ca, other := authority.New(t, "ca"), authority.New(t, "other")
	good := ca.Issue(t, t.TempDir(), authority.Request{Name: host})
	strange := other.Issue(t, t.TempDir(), authority.Request{Name: host})
	for want, files := range map[string]peertls.Files{
		"--tls-cert, --tls-key: ": {Cert: good.Cert, Key: strange.Key, CA: good.CA},
		"--tls-ca: ":              {Cert: good.Cert, Key: good.Key, CA: good.Key},
		"no such file":            {Cert: good.Cert + "x", Key: good.Key, CA: good.CA},
	} {
		if _, err := peertls.Open(files); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open() = %v, want %q", err, want)
		} else if strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}

func TestAddresses(t *testing.T) {
	for address, valid := range map[string]bool{
		"node-1:7443": true, "192.0.2.1:7443": true, "[2001:db8::1]:7443": true, "dns:///node-1.example:7443": true,
		"dns://192.0.2.53/node-1.example:7443": true,
		"node-1":                               false, ":7443": false, "node-1:0": false, "node-1:https": false,
		"dns:node-1": false, "dns:///": false, "https://node-1:7443": false, "node-1:70000": false,
	} {
		if problem := peertls.CheckAddress(address); (problem == "") != valid {
			t.Errorf("CheckAddress(%q) = %q, want valid %v", address, problem, valid)
		}
	}
}

// exchange sends a byte from one end to the other.
func exchange(t *testing.T, from, to net.Conn) {
	t.Helper()
	_, err := from.Write([]byte{1})
	must(t, err)
	_, err = to.Read(make([]byte, 1))
	must(t, err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
