package bundle

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

// TestPacketsOfPodsPassWhereForwardingIsDropped: the rules exist once, however often a node starts, and are removed
// with it. The test uses a network namespace of its own, not the machine's rules.
func TestPacketsOfPodsPassWhereForwardingIsDropped(t *testing.T) {
	require.Root(t, "a packet filter rule")
	_, err := exec.LookPath("iptables")
	require.NoError(t, err)
	const bridge = "quartet-test"
	rules := func() (ours []string) {
		out, err := exec.Command("iptables", "-S", "FORWARD").CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, bridge) && strings.Contains(line, "-j ACCEPT") {
				ours = append(ours, line)
			}
		}
		return ours
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("making a network namespace: %v", err)
			return
		}
		for range 2 {
			if err := allowForwarding(bridge); err != nil {
				t.Error(err)
			}
		}
		if got := rules(); len(got) != 2 {
			t.Errorf("the rules are %q, want one for each direction", got)
		}
		for range 2 {
			if err := endForwarding(bridge); err != nil {
				t.Error(err)
			}
		}
		if got := rules(); len(got) != 0 {
			t.Errorf("left behind: %q", got)
		}
	}()
	<-done
}
