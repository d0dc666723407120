package processors

import (
	"os"
	"runtime"
	"testing"
)

func TestAProcessUsesAQuarterOfTheProcessors(t *testing.T) {
	for available, want := range map[int]int{1: 1, 2: 1, 4: 1, 7: 1, 8: 2, 16: 4, 64: 4, 256: 4} {
		if got := of(available); got != want {
			t.Errorf("of %d processors a process uses %d, want %d", available, got, want)
		}
	}
}

// TestLimitLeavesWhatAnOperatorHasSet, and otherwise limits this process.
func TestLimitLeavesWhatAnOperatorHasSet(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	runtime.GOMAXPROCS(8)
	t.Setenv(Variable, "8")
	Limit()
	if got := runtime.GOMAXPROCS(0); got != 8 {
		t.Errorf("with %s=8 there are %d processors, want 8", Variable, got)
	}
	if err := os.Unsetenv(Variable); err != nil { // t.Setenv restores it
		t.Fatal(err)
	}
	Limit()
	if got := runtime.GOMAXPROCS(0); got != 2 {
		t.Errorf("of 8 processors there are %d, want 2", got)
	}
	All()
	if got := runtime.GOMAXPROCS(0); got != runtime.NumCPU() {
		t.Errorf("without a limit there are %d processors, want %d", got, runtime.NumCPU())
	}
}
