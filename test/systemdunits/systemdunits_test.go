// Package systemdunits tests the units of deploy/systemd with a real systemd.
package systemdunits

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/require"
	"github.com/quartet-node/quartet/test/systemdhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	units    = "../../deploy/systemd"
	services = "/usr/local/libexec/quartet"
	// config is that of docs/operating.md. Its runtime is not there: the processes run, and say so.
	config = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: systemd
staticPodPath: /etc/kubernetes/manifests
`
)

func names() []string { return []string{"configmux", "pleg", "syncloop", "nodestatus"} }

// install does what docs/operating.md says, into directories whose changes go away with this systemd.
func install(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"/etc", "/usr/local", "/var"} {
		changes := t.TempDir()
		upper, work := filepath.Join(changes, "upper"), filepath.Join(changes, "work")
		must(t, os.Mkdir(upper, 0o755))
		must(t, os.Mkdir(work, 0o755))
		must(t, unix.Mount("overlay", dir, "overlay", 0, "lowerdir="+dir+",upperdir="+upper+",workdir="+work))
		t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	}
	for _, dir := range []string{services, "/usr/local/bin", "/etc/quartet", "/etc/kubernetes/manifests"} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	bin := harness.BinDir(t)
	for _, name := range names() {
		must(t, os.Symlink(filepath.Join(bin, name), filepath.Join(services, name)))
	}
	must(t, os.Symlink(filepath.Join(bin, "quartet"), "/usr/local/bin/quartet"))
	must(t, os.WriteFile("/etc/quartet/kubelet.yaml", []byte(config), 0o600))
	must(t, os.CopyFS(systemdhost.Units, os.DirFS(units)))
	systemctl(t, "daemon-reload")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "systemctl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func property(t *testing.T, unit, name string) string {
	t.Helper()
	return systemctl(t, "show", "--property="+name, "--value", unit)
}

// pid is the main process of a unit; 0 when it has none.
func pid(t *testing.T, unit string) int {
	t.Helper()
	n, err := strconv.Atoi(property(t, unit, "MainPID"))
	must(t, err)
	return n
}

// awaitServing waits until each of the four answers to `NAME health`.
func awaitServing(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range names() {
		harness.Eventually(ctx, t, name+" serves", func() bool {
			return exec.CommandContext(ctx, filepath.Join(services, name), "health", "--config", "/etc/quartet/kubelet.yaml").Run() == nil
		})
	}
}

func TestTheUnits(t *testing.T) {
	if !systemdhost.Inside() {
		for _, name := range append(names(), "quartet") {
			_, err := os.Stat(filepath.Join(harness.BinDir(t), name))
			require.NoError(t, err)
		}
		systemdhost.Run(t)
		return
	}
	install(t)
	var four []string
	for _, name := range names() {
		four = append(four, "quartet-"+name+".service")
	}

	systemctl(t, append([]string{"enable", "--now"}, four...)...)
	awaitServing(t)
	before := map[string]int{}
	for _, unit := range four {
		before[unit] = pid(t, unit)
	}

	// One that is killed is started again, and the others do not notice.
	must(t, syscall.Kill(before[four[1]], syscall.SIGKILL))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	harness.Eventually(ctx, t, four[1]+" is started again", func() bool { now := pid(t, four[1]); return now != 0 && now != before[four[1]] })
	awaitServing(t)
	for _, unit := range four {
		if restarts := property(t, unit, "NRestarts"); (restarts == "1") != (unit == four[1]) || unit != four[1] && pid(t, unit) != before[unit] {
			t.Errorf("%s was started again %s times and is %d, which was %d", unit, restarts, pid(t, unit), before[unit])
		}
	}

	// The other way to run the four takes their place when they have ended, and they its.
	systemctl(t, "start", "quartet.service")
	ended(t, four...)
	awaitServing(t)
	if running := processes(t); len(running) != len(four) {
		t.Errorf("quartet.service runs %q", running)
	}
	systemctl(t, append([]string{"start"}, four...)...)
	ended(t, "quartet.service")
	awaitServing(t)
	systemctl(t, append([]string{"stop"}, four...)...)
	ended(t, four...)
	if left := processes(t); len(left) > 0 {
		t.Errorf("when all are stopped there is %q", left)
	}
}

// ended is that units do not run, and were not killed.
func ended(t *testing.T, units ...string) {
	t.Helper()
	for _, unit := range units {
		if state, result := property(t, unit, "ActiveState"), property(t, unit, "Result"); state != "inactive" || result != "success" {
			t.Errorf("%s is %s: %s", unit, state, result)
		}
	}
}

// processes are the names of the services that run, of whichever unit.
func processes(t *testing.T) []string {
	t.Helper()
	var found []string
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	must(t, err)
	for _, file := range files {
		comm, err := os.ReadFile(file)
		if name := strings.TrimSpace(string(comm)); err == nil && slices.Contains(names(), name) {
			found = append(found, fmt.Sprint(filepath.Dir(file), " ", name))
		}
	}
	return found
}
