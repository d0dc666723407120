package systemdhost

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/require"
)

const (
	// logind is the path of the program.
	logind = "/lib/systemd/systemd-logind"
	// machineUnits is the directory of the units of D-Bus' package.
	machineUnits = "/lib/systemd/system"
	// wentDown is the file that exists after a simulated shutdown.
	wentDown = "/run/went-down"
	// downService is the unit that creates it.
	downService = "went-down.service"
	// config is the directory of logind's drop-in files.
	config = "/etc/systemd"
)

// logindUnit has the required settings of the package's unit for logind, without those that need more than the
// environment inside has.
const logindUnit = `[Unit]
DefaultDependencies=no
Requires=dbus.socket
After=dbus.socket
[Service]
Type=dbus
BusName=org.freedesktop.login1
ExecStart=` + logind + `
RuntimeDirectory=systemd/sessions systemd/seats systemd/users systemd/inhibit systemd/shutdown
RuntimeDirectoryPreserve=yes
`

// Units that replace the units that would end everything inside.
const (
	poweroffTarget = "[Unit]\nDefaultDependencies=no\nWants=" + downService + "\nAfter=" + downService + "\n"
	wentDownUnit   = "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nTimeoutStartSec=infinity\nExecStart=sh -c 'touch " + wentDown + " && exec sleep infinity'\n"
)

// MissingLogind returns an error that names what the machine lacks for StartLogind; nil when it has everything.
func MissingLogind() error {
	for _, file := range []string{logind, filepath.Join(machineUnits, "dbus.service"), "/usr/bin/dbus-daemon", "/usr/bin/busctl"} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("%w: apt-get install systemd dbus", err)
		}
	}
	return nil
}

// StartLogind starts a D-Bus and a logind, inside. After `systemctl poweroff`, or another request to logind for a
// shutdown, WentDown returns true, and the shutdown stays in progress until CallOff; nothing else happens. logind's
// drop-in files may be written, and are removed with the environment.
func StartLogind(t testing.TB) {
	t.Helper()
	require.NoError(t, MissingLogind())
	changes := t.TempDir()
	upper, work := filepath.Join(changes, "upper"), filepath.Join(changes, "work")
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755),
		unix.Mount("overlay", config, "overlay", 0, "lowerdir="+config+",upperdir="+upper+",workdir="+work)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(config, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	units := map[string]string{"systemd-logind.service": logindUnit, "poweroff.target": poweroffTarget, downService: wentDownUnit}
	for _, name := range []string{"dbus.service", "dbus.socket"} {
		content, err := os.ReadFile(filepath.Join(machineUnits, name))
		if err != nil {
			t.Fatal(err)
		}
		units[name] = string(content)
	}
	for name, content := range units {
		if err := os.WriteFile(filepath.Join(Units, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	systemctl(t, "daemon-reload")
	systemctl(t, "start", "dbus.service", "systemd-logind.service")
}

// polkit is the path of polkit's daemon.
const polkit = "/usr/lib/polkit-1/polkitd"

// StartPolkit starts a polkit with the rules of the machine beside the logind of StartLogind, so that users other than
// root get what these rules give them.
func StartPolkit(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(polkit); err != nil {
		require.NoError(t, fmt.Errorf("%w: apt-get install polkitd", err))
	}
	unit := "[Unit]\nDefaultDependencies=no\nRequires=dbus.socket\nAfter=dbus.socket\n" +
		"[Service]\nType=dbus\nBusName=org.freedesktop.PolicyKit1\nExecStart=" + polkit + " --no-debug\n"
	if err := os.WriteFile(filepath.Join(Units, "polkit.service"), []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	systemctl(t, "start", "polkit.service")
}

func systemctl(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "systemctl", args...).CombinedOutput(); err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// WentDown reports whether the machine would have shut down.
func WentDown() bool {
	_, err := os.Stat(wentDown)
	return err == nil
}

// Inhibit delays a shutdown by an inhibitor lock, as another program than the node may, until release is called.
func Inhibit(t testing.TB) (release func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=another", "sh", "-c", "echo held; exec cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // the command runs once it has the lock
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("systemd-inhibit: %v", err)
		}
	}
}

// CallOff ends a shutdown that has made WentDown true, like a failed shutdown.
func CallOff(t testing.TB) {
	t.Helper()
	systemctl(t, "kill", downService)
	if err := os.Remove(wentDown); err != nil {
		t.Fatal(err)
	}
}
