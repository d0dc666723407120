package conformance_test

import (
	"testing"

	"github.com/quartet-node/quartet/conformance"
)

func TestOwnPLEGKeepsItsContract(t *testing.T) {
	t.Parallel()
	skipped := 0
	part := ownPLEG(t)
	if err := conformance.PLEG().Check(t.Context(), part, func(r conformance.Result) {
		t.Logf("%s %s %v %s", r.Outcome, r.Name, r.Took, r.Why)
		switch r.Outcome {
		case conformance.Fail:
			t.Errorf("%s: %s", r.Name, r.Why)
		case conformance.Skip:
			skipped++
		case conformance.Pass:
		}
	}); err != nil {
		t.Fatal(err)
	}
	if skipped > 0 {
		t.Errorf("%d rules were skipped, want none", skipped)
	}
}
