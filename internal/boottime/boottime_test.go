package boottime_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/boottime"
)

func TestNowNeverGoesBack(t *testing.T) {
	last := boottime.Now()
	for range 1000 {
		now := boottime.Now()
		if now < last {
			t.Fatalf("the clock went from %v back to %v", last, now)
		}
		last = now
	}
}

// Another process has to read the same clock: /proc/uptime is the kernel's value of it.
func TestNowIsTheUptimeOfTheMachine(t *testing.T) {
	before := boottime.Now()
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Skipf("no /proc/uptime here: %v", err)
	}
	after := boottime.Now()
	seconds, err := strconv.ParseFloat(strings.Fields(string(data))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	// /proc/uptime has hundredths of a second.
	const grain = 20 * time.Millisecond
	uptime := time.Duration(seconds * float64(time.Second))
	if uptime < before-grain || uptime > after+grain {
		t.Errorf("uptime is %v, Now said %v before and %v after", uptime, before, after)
	}
}
