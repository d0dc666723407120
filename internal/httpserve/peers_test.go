package httpserve_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves with limits, and lets in who asks for /in. It returns the address.
func serve(t *testing.T, limits httpserve.Limits) string {
	t.Helper()
	certificate := httptest.NewTLSServer(http.NotFoundHandler())
	config := &tls.Config{Certificates: certificate.TLS.Certificates, MinVersion: tls.VersionTLS12}
	certificate.Close()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/in" {
				httpserve.LetIn(r.Context())
			}
			_, _ = io.WriteString(w, "ok")
		})
		done <- httpserve.Streams(ctx, listener, limits, config, handler, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil && !strings.Contains(err.Error(), "deadline exceeded") {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// dial connects from an address of the loopback interface.
func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// client is a connection that is kept.
type client struct {
	*http.Client
	url string
}

func newClient(t *testing.T, from, to string) client {
	t.Helper()
	conn := dial(t, from, to)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // a server of this test
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	t.Cleanup(transport.CloseIdleConnections)
	return client{Client: &http.Client{Transport: transport, Timeout: time.Minute}, url: "https://" + to}
}

func (c client) get(t *testing.T, path string) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(request)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	return err
}

// closed reports whether the server has closed a connection.
func closed(t *testing.T, conn net.Conn) bool {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	timeout, ok := err.(net.Error) //nolint:errorlint // the error of a read itself
	return err != nil && (!ok || !timeout.Timeout())
}

func open(t *testing.T, conns []net.Conn) (open int) {
	t.Helper()
	for _, conn := range conns {
		if !closed(t, conn) {
			open++
		}
	}
	return open
}

func TestAStrangerMakesRoomForTheNext(t *testing.T) {
	to := serve(t, httpserve.Limits{Connections: 100, ConnectionsOfPeer: 50, Strangers: 8, StrangersOfPeer: 4})
	friend, stranger := newClient(t, "127.0.0.1", to), newClient(t, "127.0.0.1", to)
	if err := friend.get(t, "/in"); err != nil {
		t.Fatal(err)
	}
	if err := stranger.get(t, "/"); err != nil {
		t.Fatal(err)
	}
	var silent []net.Conn
	for range 20 {
		silent = append(silent, dial(t, "127.0.0.1", to))
	}
	eventually.That(t, "there are four strangers", func() bool { return open(t, silent) == 4 })
	if closed(t, silent[19]) {
		t.Error("the newest is closed, want the oldest")
	}
	if err := friend.get(t, "/in"); err != nil {
		t.Errorf("a connection on which a user was let in is closed: %v", err)
	}
	if err := stranger.get(t, "/"); err == nil {
		t.Error("the oldest stranger is still connected")
	}
}

func TestThePeerWithTheMostStrangersMakesRoom(t *testing.T) {
	to := serve(t, httpserve.Limits{Connections: 100, ConnectionsOfPeer: 50, Strangers: 5, StrangersOfPeer: 4})
	var many []net.Conn
	for range 4 {
		many = append(many, dial(t, "127.0.0.2", to))
	}
	one, another := dial(t, "127.0.0.3", to), dial(t, "127.0.0.4", to)
	eventually.That(t, "one is closed", func() bool { return open(t, many) == 3 })
	if closed(t, one) || closed(t, another) {
		t.Error("a connection of a peer with one is closed")
	}
}

func TestAPeerHasOnlySoManyConnections(t *testing.T) {
	to := serve(t, httpserve.Limits{Connections: 3, ConnectionsOfPeer: 2, Strangers: 8, StrangersOfPeer: 8})
	first := newClient(t, "127.0.0.1", to)
	for _, one := range []client{first, newClient(t, "127.0.0.1", to), newClient(t, "127.0.0.2", to)} {
		if err := one.get(t, "/in"); err != nil {
			t.Fatal(err)
		}
	}
	if err := newClient(t, "127.0.0.1", to).get(t, "/in"); err == nil {
		t.Error("a peer has three connections, want two")
	}
	if err := newClient(t, "127.0.0.2", to).get(t, "/in"); err == nil {
		t.Error("there are four connections, want three")
	}
	first.CloseIdleConnections()
	eventually.That(t, "there is room again", func() bool { return newClient(t, "127.0.0.1", to).get(t, "/in") == nil })
}

// TestHeadersThatDoNotCome checks clients that send a part of a handshake or of a request and then nothing, and one
// that closes its sending side.
func TestHeadersThatDoNotCome(t *testing.T) {
	to := serve(t, httpserve.StreamLimits())
	handshake, request, half := dial(t, "127.0.0.1", to), dial(t, "127.0.0.1", to), dial(t, "127.0.0.1", to)
	_, _ = handshake.Write([]byte{22, 3, 1})
	if err := half.(*net.TCPConn).CloseWrite(); err != nil { //nolint:forcetypeassert // it was dialed by TCP
		t.Fatal(err)
	}
	slow := tls.Client(request, &tls.Config{InsecureSkipVerify: true}) // a server of this test
	if err := slow.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _ = slow.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "))
	for what, conn := range map[string]net.Conn{"a handshake": handshake, "a request": request, "half": half} {
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: the connection is open after a minute", what)
		}
	}
}

func TestHeadersThatAreTooLarge(t *testing.T) {
	to := serve(t, httpserve.StreamLimits())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+to, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Large", strings.Repeat("x", 2<<20))
	answer, err := newClient(t, "127.0.0.1", to).Do(request)
	if err == nil {
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("answer.StatusCode = %d, want %d", answer.StatusCode, http.StatusRequestHeaderFieldsTooLarge)
		}
	}
}

func TestThePeerOfAnAddress(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[2001:db8::1:2:3:4]:5": "2001:db8::/64",
		"[fe80::1%eth0]:5": "fe80::/64", "@": "@",
	} {
		if got := httpserve.Peer(address); got != want {
			t.Errorf("Peer(%q) = %q, want %q", address, got, want)
		}
	}
}
