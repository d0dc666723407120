package kubeletapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	serving "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	constants "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

// allowed is the token of the one user who is let in by tokenGuard.
const allowed = "allowed"

// tokenGuard lets one user in.
func tokenGuard(next http.Handler, _ ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+allowed {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		httpserve.LetIn(r.Context())
		next.ServeHTTP(w, r)
	})
}

// serveTLS serves an API as syncloop does, and returns the address.
func serveTLS(t *testing.T, api http.Handler) string {
	t.Helper()
	certified := httptest.NewTLSServer(http.NotFoundHandler())
	config := &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS12}
	certified.Close()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = httpserve.Streams(ctx, listener, httpserve.StreamLimits(), config, api, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return listener.Addr().String()
}

// execOf runs a command over TLS as the allowed user.
func execOf(t *testing.T, ctx context.Context, to string, in io.Reader, out io.Writer) error { //nolint:revive // the test first
	t.Helper()
	config := &rest.Config{BearerToken: allowed, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	executor, err := remotecommand.NewWebSocketExecutorForProtocols(config, http.MethodGet,
		"https://"+to+"/exec/default/web/main?command=cat&input=1&output=1", constants.StreamProtocolV5Name)
	if err != nil {
		t.Fatal(err)
	}
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out})
}

// attacks are what the connections of an attacker do after they are made.
var attacks = []func(net.Conn){
	func(net.Conn) {}, // silent
	func(c net.Conn) { _, _ = c.Write([]byte{22, 3, 1, 0}) }, // a slow handshake
	func(c net.Conn) { // half-closed
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	},
	func(c net.Conn) { _, _ = io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\n", 64)) }, // without TLS
}

// TestThousandsOfConnectionsDoNotHarmAStream opens 10,000 connections, or as many as this process may open files, while
// an allowed user uses a stream and begins others.
func TestThousandsOfConnectionsDoNotHarmAStream(t *testing.T) {
	// The API closes all but a few hundred of its ends of the connections.
	const own, least, most = 2000, 1000, 10_000
	connections := min(most, raiseFiles(t)-own)
	if connections < least {
		require.NoError(t, fmt.Errorf("this process may open %d files: raise the limit with ulimit -Hn", connections+own))
	}
	t.Logf("%d connections", connections)
	r := newRig(t)
	r.cfg.Guard = tokenGuard
	serveStreams(t, r, &insides{run: func(in io.Reader, out, _ io.Writer, _ <-chan serving.TerminalSize) error {
		_, err := io.Copy(out, in)
		return err
	}})
	api := Node(r.cfg)
	t.Cleanup(api.Close)
	to := serveTLS(t, api)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, typed := io.Pipe()
	shown, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- execOf(t, ctx, to, in, out) }()
	echo := func() {
		t.Helper()
		if _, err := io.WriteString(typed, "ping"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(shown, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	echo()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	var attackers []net.Conn
	for i := range connections {
		conn, err := dialer.DialContext(ctx, "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		attackers = append(attackers, conn)
		attacks[i%len(attacks)](conn)
		if i%1000 == 0 {
			echo()
		}
	}
	var printed strings.Builder
	if err := execOf(t, ctx, to, strings.NewReader("another"), &printed); err != nil || printed.String() != "another" {
		t.Errorf("another stream has %q, %v, want %q", &printed, err, "another")
	}
	eventually.That(t, "the connections of the attacker are closed", func() bool {
		return stillOpen(attackers) <= httpserve.StreamLimits().StrangersOfPeer
	})
	echo()
	_ = typed.Close()
	if err := <-ended; err != nil {
		t.Errorf("the stream ended with %v", err)
	}
	for _, conn := range attackers {
		_ = conn.Close()
	}
}

func stillOpen(conns []net.Conn) (open int) {
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Microsecond))
		_, err := conn.Read(make([]byte, 256))
		if timeout := net.Error(nil); err == nil || (errors.As(err, &timeout) && timeout.Timeout()) {
			open++
		}
	}
	return open
}

// raiseFiles allows the process as many open files as its hard limit, and returns the number.
func raiseFiles(t *testing.T) int {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	now := before
	now.Cur = now.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) })
	return int(min(now.Cur, math.MaxInt32))
}

// deadlines is a ResponseWriter that records its deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	read, write time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = at
	return nil
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.write = at
	return nil
}

// TestStrangersHaveDeadlines checks that each path has deadlines while its user is authenticated, that an answer of
// unlimited duration has none, and that a body that was not read has one again.
func TestStrangersHaveDeadlines(t *testing.T) {
	r := newRig(t)
	var w *deadlines
	r.cfg.Guard = func(next http.Handler, _ ...string) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			if soon := time.Now().Add(answerTimeout); w.read.IsZero() || w.read.After(soon) || w.write != w.read {
				t.Errorf("%s: the deadlines are %s and %s before the authentication", req.URL.Path, w.read, w.write)
			}
			next.ServeHTTP(w, req)
		})
	}
	api := Node(r.cfg)
	defer api.Close()
	for _, path := range []string{
		"/pods", "/nothing", "/exec/default/web/main", "/attach/default/web/main", "/portForward/default/web",
		"/containerLogs/default/web/main", "/logs", "/logs/", "/debug/pprof/",
	} {
		w = &deadlines{ResponseRecorder: httptest.NewRecorder()}
		api.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		if w.read.IsZero() || w.write.IsZero() {
			t.Errorf("%s: there are no deadlines after the answer", path)
		}
	}
	unbounded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if !w.read.IsZero() || !w.write.IsZero() {
			t.Errorf("an answer of unlimited duration has the deadlines %s and %s", w.read, w.write)
		}
	})).ServeHTTP(w, nil)
}

func TestABodyThatIsTooLargeIsRefusedBeforeTheAuthentication(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/run/default/web/main?cmd=ls", "/pods", "/logs", "/nothing"} {
		api := Node(r.cfg)
		body := strings.NewReader(strings.Repeat("x", maxBody+1))
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, body)
		answer := httptest.NewRecorder()
		r.granted = nil
		api.ServeHTTP(answer, request)
		api.Close()
		if answer.Code != http.StatusRequestEntityTooLarge || r.granted != nil {
			t.Errorf("%s: answer.Code = %d after %v, want %d before", path, answer.Code, r.granted, http.StatusRequestEntityTooLarge)
		}
	}
}
