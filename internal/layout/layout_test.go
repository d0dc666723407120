package layout_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
)

func TestDefaultStateDirUsesTheServicesOwnSockets(t *testing.T) {
	l, err := layout.New("")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Address(layout.PLEG), "unix:///run/quartet/pleg/pleg.sock"; got != want {
		t.Errorf("address of pleg: got %s, want %s", got, want)
	}
}

func TestShortStateDirKeepsItsSocketsWithin(t *testing.T) {
	l, err := layout.New("/srv/node")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Socket(layout.SyncLoop), "/srv/node/run/syncloop/syncloop.sock"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A socket of the longest name can be bound, however long the path of the state directory is.
func TestEverySocketPathFits(t *testing.T) {
	for length := 2; length < 300; length++ {
		l, err := layout.New("/" + strings.Repeat("d", length))
		if err != nil {
			t.Fatal(err)
		}
		paths := []string{filepath.Join(l.ShimSocketDir(), strings.Repeat("f", 64))}
		for _, service := range layout.Services() {
			paths = append(paths, l.Socket(service), l.MetricsSocket(service))
		}
		for _, path := range paths {
			if len(path) > 107 {
				t.Fatalf("state directory of %d bytes: %s has %d bytes", length, path, len(path))
			}
		}
	}
}

// The sockets of a runtime in a directory of its own fit, or the directory is refused.
func TestTheRuntimeHasADirectoryOfItsOwn(t *testing.T) {
	l, err := layout.New("/srv/node")
	if err != nil {
		t.Fatal(err)
	}
	for length := 2; length < 150; length++ {
		dir := "/" + strings.Repeat("d", length)
		own, err := l.WithRuntimeSockets(dir)
		longest := filepath.Join(dir, "s", strings.Repeat("f", 64))
		if (err == nil) != (len(longest) <= 107) {
			t.Fatalf("a directory of %d bytes: %v, with a path of %d bytes", length, err, len(longest))
		}
		if err == nil && (own.RuntimeSocket() != filepath.Join(dir, "containerd.sock") ||
			filepath.Join(own.ShimSocketDir(), strings.Repeat("f", 64)) != longest || own.Socket(layout.PLEG) != l.Socket(layout.PLEG)) {
			t.Errorf("the sockets are %s, %s and %s", own.RuntimeSocket(), own.ShimSocketDir(), own.Socket(layout.PLEG))
		}
	}
}

func TestLongStateDirsDoNotShareSockets(t *testing.T) {
	deep := "/" + strings.Repeat("deep/", 30)
	a, err := layout.New(deep + "a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := layout.New(deep + "b")
	if err != nil {
		t.Fatal(err)
	}
	if a.SocketDir() == b.SocketDir() {
		t.Errorf("both have %s", a.SocketDir())
	}
}

func TestAddressIsBindable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("n", 20))
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(l.SocketDir(), dir) {
		t.Skip("the temporary directory is so deep that the sockets go to /run/quartet, which needs root")
	}
	if err := os.MkdirAll(l.ServiceDir(layout.ConfigMux), 0o700); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", l.Socket(layout.ConfigMux))
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWhereASocketBelongs(t *testing.T) {
	for socket, want := range map[string]struct {
		service         layout.Service
		shared, earlier string
	}{
		"/run/quartet/pleg/pleg.sock":                 {"pleg", "/run/quartet", "/run/quartet/pleg.sock"},
		"/run/quartet/pleg/pleg-metrics.sock":         {"pleg", "/run/quartet", "/run/quartet/pleg-metrics.sock"},
		"/run/quartet/pleg.sock":                      {"pleg", "/run/quartet", ""},
		"/run/quartet/pleg/pleg-observer.sock":        {"pleg-observer", "/run/quartet/pleg", ""},
		"/run/quartet/pleg/configmux.sock":            {"configmux", "/run/quartet/pleg", ""},
		"/srv/other/other.sock":                       {"other", "/srv/other", ""},
		"/pleg/pleg.sock":                             {"pleg", "/", "/pleg.sock"},
		"/srv/run/nodestatus/nodestatus-metrics.sock": {"nodestatus", "/srv/run", "/srv/run/nodestatus-metrics.sock"},
	} {
		if got := layout.ServiceOf(socket); got != want.service {
			t.Errorf("%s is %q's, want %q", socket, got, want.service)
		}
		if got := layout.SharedDir(socket); got != want.shared {
			t.Errorf("%s shares %s, want %s", socket, got, want.shared)
		}
		if got := layout.EarlierSocket(socket); got != want.earlier {
			t.Errorf("%s was %q, want %q", socket, got, want.earlier)
		}
	}
	l, err := layout.New("/srv/node")
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range layout.Services() {
		for _, socket := range []string{l.Socket(service), l.MetricsSocket(service)} {
			if !layout.InServiceDir(socket) || filepath.Dir(socket) != l.ServiceDir(service) ||
				layout.ServiceOf(socket) != service || layout.SharedDir(socket) != l.SocketDir() {
				t.Errorf("%s is not where %s has its sockets", socket, service)
			}
		}
	}
}
