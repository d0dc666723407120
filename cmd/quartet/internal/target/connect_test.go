package target

import (
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
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
