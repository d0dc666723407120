package systemdunits

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
	"github.com/quartet-node/quartet/test/systemdhost"
)

// shutdownPeriods are longer than logind waits by default, which is 5 s.
const shutdownPeriods = "shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 5s\n"

// TestPodsEndBeforeTheMachineGoesDownWithUnits: nodestatus delays a shutdown as its own user, whom polkit lets do so,
// for as long as the configuration says, which root has told logind before its start.
func TestPodsEndBeforeTheMachineGoesDownWithUnits(t *testing.T) {
	if !systemdhost.Inside() {
		require.NoError(t, systemdhost.MissingLogind())
		systemdhost.Run(t)
		return
	}
	install(t)
	systemdhost.StartLogind(t)
	systemdhost.StartPolkit(t)
	web := startPod(t)
	web.configure(t, shutdownPeriods)
	var four []string
	for _, name := range names() {
		four = append(four, "quartet-"+name+".service")
	}
	systemctl(t, append([]string{"start"}, four...)...)
	web.starts(t)

	const dropIn = "/etc/systemd/logind.conf.d/99-quartet.conf"
	info, err := os.Stat(dropIn)
	must(t, err)
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Uid != 0 || info.Mode() != 0o644 {
		t.Errorf("%s is %v of user %d, want root's, which nodestatus cannot change", dropIn, info.Mode(), owner.Uid)
	}
	delay, err := exec.CommandContext(t.Context(), "busctl", "get-property",
		"org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "InhibitDelayMaxUSec").CombinedOutput()
	if got := strings.TrimSpace(string(delay)); err != nil || got != "t 20000000" {
		t.Errorf("logind waits %q: %v, want 20 s", got, err)
	}
	if running := userOf(t, "nodestatus"); running == 0 {
		t.Error("the unit of nodestatus is root's")
	}
	await(t, "nodestatus has a lock", func() (string, bool) {
		out, err := exec.CommandContext(t.Context(), "systemd-inhibit", "--list", "--no-legend").CombinedOutput()
		return string(out), err == nil && strings.Contains(string(out), "quartet-nodestatus")
	})

	systemctl(t, "poweroff")
	await(t, "the machine goes down", func() (string, bool) { return "", systemdhost.WentDown() })
	if left := web.containers(t); len(left) != 1 || !strings.HasPrefix(left[0], web.container+" ") {
		t.Errorf("when the machine went down, the pod had the containers %q, want %s, which has ended", left, web.container)
	}
	systemctl(t, append([]string{"stop"}, four...)...)
	systemdhost.CallOff(t)
}

// await waits until a condition holds, which also returns what it has seen.
func await(t *testing.T, what string, holds func() (seen string, done bool)) {
	t.Helper()
	last := ""
	wait := eventually.Wait{State: func() string { return last }, Interval: 100 * time.Millisecond, Patience: time.Minute}
	wait.That(t, what, func() (done bool) {
		last, done = holds()
		return done
	})
}
