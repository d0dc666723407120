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
	if got, want := l.Address(layout.PLEG), "unix:///run/quartet/pleg.sock"; got != want {
		t.Errorf("address of pleg: got %s, want %s", got, want)
	}
}

func TestShortStateDirKeepsItsSocketsWithin(t *testing.T) {
	l, err := layout.New("/srv/node")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Socket(layout.SyncLoop), "/srv/node/run/syncloop.sock"; got != want {
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
		longest := filepath.Join(l.ShimSocketDir(), strings.Repeat("f", 64))
		if len(longest) > 107 {
			t.Fatalf("state directory of %d bytes: socket path of %d bytes", length, len(longest))
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
	if err := os.MkdirAll(l.SocketDir(), 0o700); err != nil {
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
