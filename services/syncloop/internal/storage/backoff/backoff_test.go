package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
)

func TestAfter(t *testing.T) {
	for earlier, want := range map[int]time.Duration{
		0: 500 * time.Millisecond, 1: time.Second, 2: 2 * time.Second, 7: 64 * time.Second, 8: 122 * time.Second,
		9: 122 * time.Second, math.MaxInt: 122 * time.Second,
	} {
		if got := backoff.After(earlier); got != want {
			t.Errorf("After(%d) = %s, want %s", earlier, got, want)
		}
	}
}
