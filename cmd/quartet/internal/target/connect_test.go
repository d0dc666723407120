package target

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeprocess/nodeprocesstest"
	"github.com/quartet-node/quartet/test/harness"
)

// A user of a machine that kubeadm has set up may not know of its state directory.
func TestTheNodeInThePlaceOfAKubeletIsNamed(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ stateDir, other, want string }{
		{"", dir, ": a node in the place of a kubelet has " + dir},
		{layout.DefaultStateDir, dir, ": a node in the place of a kubelet has " + dir},
		{"/srv/node", dir, ""},
		{"", filepath.Join(dir, "none"), ""},
	} {
		if got := otherNode(c.stateDir, c.other); got != c.want {
			t.Errorf("otherNode(%q, %q) = %q, want %q", c.stateDir, c.other, got, c.want)
		}
	}
}

// Only the command line of syncloop says whether a node has a configmux of its own.
func TestAMissingConfigmuxMayBeElsewhere(t *testing.T) {
	dir := harness.ShortDir(t)
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(l.Socket(layout.SyncLoop)), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", l.Socket(layout.SyncLoop))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nobody connects any more
	n := Node{StateDir: dir}
	const hint = "if the pods come from a configmux elsewhere"
	for _, unknown := range []bool{true, false} {
		if !unknown {
			nodeprocesstest.Start(t, dir, layout.SyncLoop)
		}
		_, err := n.Connect(t.Context(), layout.ConfigMux)
		if err == nil || !strings.Contains(err.Error(), "although syncloop of the same node does") ||
			strings.Contains(err.Error(), hint) != unknown {
			t.Errorf("Connect() error = %v, want the hint %q: %v", err, hint, unknown)
		}
	}
	if _, err := n.Connect(t.Context(), layout.PLEG); err == nil || strings.Contains(err.Error(), hint) {
		t.Errorf("Connect() error = %v, want no hint for pleg", err)
	}
}
