package resourcename_test

import (
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/resourcename"
)

func TestIsExtended(t *testing.T) {
	for name, want := range map[string]bool{
		"example.com/gpu": true, "nvidia.com/mig-1g.5gb": true, "cpu": false, "gpu": false, "kubernetes.io/gpu": false,
		"sub.kubernetes.io/gpu": false, "requests.example.com/gpu": false, "example.com/": false, "/gpu": false,
		"example.com/a/b": false, "Example.com/gpu": false, "example.com/g pu": false, "": false,
		"example.com/" + strings.Repeat("x", 64): false, strings.Repeat("x", 240) + ".example.com/gpu": false,
		"example.com/../../etc": false,
	} {
		if got := resourcename.IsExtended(name); got != want {
			t.Errorf("IsExtended(%q) = %v", name, got)
		}
	}
}
