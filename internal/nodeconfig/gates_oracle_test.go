package nodeconfig_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/kubernetes/pkg/features" // registers the gates
)

// TestTheGatesAreThoseOfThisVersion compares gates.txt with the gates of a kubelet. After a change of the version of
// Kubernetes, -update rewrites it; gates.go has the gates for which Quartet differs from the default.
func TestTheGatesAreThoseOfThisVersion(t *testing.T) {
	kubelet := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := logsapi.AddFeatureGates(kubelet); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for name, spec := range kubelet.GetAll() {
		words := []string{string(name), fmt.Sprint(spec.Default)}
		if spec.LockToDefault {
			words = append(words, "locked")
		}
		lines = append(lines, strings.Join(words, " ")+"\n")
	}
	slices.Sort(lines)
	want := strings.Join(lines, "")
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile("gates.txt", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("gates.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("gates.txt is not of this version, write it with -update (-want +got):\n%s", diff)
	}
}
