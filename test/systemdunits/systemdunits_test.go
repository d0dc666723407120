// Package systemdunits tests the units of deploy/systemd with a real systemd.
package systemdunits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
	"github.com/quartet-node/quartet/test/systemdhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	configmuxState = "/var/lib/quartet/configmux"
	sysusers       = "/etc/sysusers.d/quartet.conf"
	// unitsLog has what the units say, as there is no journal. logTail bounds what of it is shown.
	unitsLog = "/run/units.log"
	logTail  = 8 << 10
	units    = "../../deploy/systemd"
	services = "/usr/local/libexec/quartet"
	// kubeletYAML is the configuration, and manifests the directory of the static pods.
	kubeletYAML = "/etc/quartet/kubelet.yaml"
	manifests   = "/etc/kubernetes/manifests"
	// config is that of docs/reference/configuration.md, but with the cgroup driver of the bundled runtime, without
	// evictions, and without the runtime's socket.
	config = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
staticPodPath: ` + manifests + `
` + livenode.AnyMachine
)

func names() []string { return []string{"configmux", "pleg", "syncloop", "nodestatus"} }

// install follows docs/howto/run-a-node.md, in directories whose changes are discarded with this systemd.
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
	for _, dir := range []string{services, "/usr/local/bin", filepath.Dir(kubeletYAML), manifests} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	bin := harness.BinDir(t)
	for _, name := range append(names(), "quartet", "quartet-supervisor") {
		// A link into a home directory or /tmp would lead nowhere, because the units do not see all of them.
		program, err := os.ReadFile(filepath.Join(bin, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(services, name), program, 0o755))
	}
	must(t, os.Symlink(filepath.Join(bin, "quartet"), "/usr/local/bin/quartet"))
	must(t, os.RemoveAll("/var/lib/quartet")) // of a node of this machine
	users, err := os.ReadFile(filepath.Join(units, "quartet.conf"))
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(sysusers), 0o755))
	must(t, os.WriteFile(sysusers, users, 0o644))
	if out, err := exec.CommandContext(t.Context(), "systemd-sysusers", sysusers).CombinedOutput(); err != nil {
		t.Fatalf("systemd-sysusers: %v\n%s", err, out)
	}
	must(t, os.CopyFS(systemdhost.Units, os.DirFS(units)))
	must(t, os.Mkdir(filepath.Join(systemdhost.Units, "service.d"), 0o755))
	must(t, os.WriteFile(filepath.Join(systemdhost.Units, "service.d", "log.conf"), []byte("[Service]\nStandardError=append:"+unitsLog+"\n"), 0o644))
	t.Cleanup(func() {
		if log, err := os.ReadFile(unitsLog); t.Failed() && err == nil {
			t.Logf("the units have said, at the end:\n%s", log[max(0, len(log)-logTail):])
		}
	})
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

// pid returns the main process of a unit; 0 when it has none.
func pid(t *testing.T, unit string) int {
	t.Helper()
	n, err := strconv.Atoi(property(t, unit, "MainPID"))
	must(t, err)
	return n
}

// serves returns an error unless a service answers `NAME health`.
func serves(t *testing.T, name string) error {
	t.Helper()
	health := exec.CommandContext(t.Context(), filepath.Join(services, name), "health", "--config", kubeletYAML)
	out, err := health.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// serving checks that each of the four serves as soon as systemd reports the units as active.
func serving(t *testing.T) {
	t.Helper()
	for _, name := range names() {
		if err := serves(t, name); err != nil {
			t.Errorf("%s is active and does not serve: %v", name, err)
		}
	}
}

// awaitActive waits until a unit is active.
func awaitActive(t *testing.T, unit string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually.In(ctx, t, unit+" is active", func() bool { return property(t, unit, "ActiveState") == "active" })
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
	limits(t)
	web := startPod(t)
	stateIsKept(t, four, web)

	systemctl(t, append([]string{"enable", "--now"}, four...)...)
	serving(t)
	for _, unit := range four {
		systemctl(t, "restart", unit)
		serving(t)
		web.noticesNothing(t, "the restart of "+unit)
	}
	before := map[string]int{}
	for _, unit := range four {
		before[unit] = pid(t, unit)
	}

	// A killed unit is restarted, and the others are not affected.
	must(t, syscall.Kill(before[four[1]], syscall.SIGKILL))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually.In(ctx, t, four[1]+" is started again", func() bool { now := pid(t, four[1]); return now != 0 && now != before[four[1]] })
	awaitActive(t, four[1])
	serving(t)
	for _, unit := range four {
		if restarts := property(t, unit, "NRestarts"); (restarts == "1") != (unit == four[1]) || unit != four[1] && pid(t, unit) != before[unit] {
			t.Errorf("%s was started again %s times and is %d, which was %d", unit, restarts, pid(t, unit), before[unit])
		}
	}

	web.noticesNothing(t, "a kill")
	namesOfTheirOwn(t)
	standsStill(t, four)
	portStaysOpen(t, "quartet-nodestatus.service")
	web.noticesNothing(t, "processes that stood still")

	// quartet.service, which runs the four processes, replaces the four units, and they replace it.
	systemctl(t, "start", "quartet.service")
	ended(t, four...)
	serving(t)
	portStaysOpen(t, "quartet.service")
	serving(t)
	if running := processes(t); len(running) != len(four) {
		t.Errorf("quartet.service runs %q, want %d entries", running, len(four))
	}
	noneSpeaksForTheUnit(t)
	web.noticesNothing(t, "a kill of quartet.service")
	systemctl(t, append([]string{"start"}, four...)...)
	ended(t, "quartet.service")
	serving(t)
	web.noticesNothing(t, "the move to four units")
	systemctl(t, append([]string{"stop"}, four...)...)
	ended(t, four...)
	if left := processes(t); len(left) > 0 {
		t.Errorf("when all are stopped there is %q, want none", left)
	}
	if _, err := askHealth(t); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("when all are stopped the port of the health is open: %v", err)
	}
	web.runsOn(t, "the end of all units")
	clusterFlags(t, four, web)
	activeOnlyWhenItServes(t)
	web.runsOn(t, "all of this")
}

// namesOfTheirOwn checks that each unit has its sockets in a directory of its own, that a restricted one cannot make
// names elsewhere, and that programs of v0.1.0 find the sockets.
func namesOfTheirOwn(t *testing.T) {
	t.Helper()
	for _, name := range names() {
		dir := filepath.Join(layout.DefaultRunDir, name)
		info, err := os.Stat(dir)
		must(t, err)
		owner, ok := info.Sys().(*syscall.Stat_t)
		if want := os.ModeDir | 0o711; !ok || info.Mode() != want || int(owner.Uid) != userOf(t, name) {
			t.Errorf("%s is %v of user %d, want %v of %d", dir, info.Mode(), owner.Uid, want, userOf(t, name))
		}
		for _, socket := range []string{name + ".sock", name + "-metrics.sock"} {
			today, err := os.Stat(filepath.Join(dir, socket))
			must(t, err)
			earlier, err := os.Stat(filepath.Join(layout.DefaultRunDir, socket))
			if err != nil || !os.SameFile(today, earlier) {
				t.Errorf("programs of v0.1.0 do not find %s: %v", socket, err)
			}
		}
		if name == "syncloop" {
			continue // it is not restricted
		}
		for _, other := range append(names(), "") {
			path := filepath.Join(layout.DefaultRunDir, other, "name")
			out, err := within(t, name, "touch", path)
			if (err == nil) != (other == name) {
				t.Errorf("%s makes a name in %s: %v %s", name, filepath.Dir(path), err, out)
			}
			must(t, os.RemoveAll(path))
		}
	}
}

// mostExposed is the highest exposure level of a unit by "systemd-analyze security", which is from 0 to 10.
const mostExposed = 3.0

// docs/howto/run-a-node.md explains the exposure of syncloop, which needs most privileges.
func TestTheUnitsThatNeedLittleHaveLittleExposure(t *testing.T) {
	_, err := exec.LookPath("systemd-analyze")
	require.NoError(t, err)
	for _, name := range []string{"configmux", "pleg", "nodestatus"} {
		unit := "quartet-" + name + ".service"
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "security", "--no-pager", "--offline=true",
			filepath.Join("..", "..", "deploy", "systemd", unit)).CombinedOutput()
		if err != nil {
			t.Fatalf("systemd-analyze security %s: %v\n%s", unit, err, out)
		}
		_, level, _ := strings.Cut(string(out), "Overall exposure level for "+unit+": ")
		level, _, _ = strings.Cut(level, " ")
		t.Logf("%s: %s", unit, level)
		if number, err := strconv.ParseFloat(level, 64); err != nil || number > mostExposed {
			t.Errorf("%s has the exposure level %q, want at most %.1f:\n%s", unit, level, mostExposed, out)
		}
	}
}

// portStaysOpen checks that a connection to the port of a unit is not refused when its main process is killed. It waits
// for the next process.
func portStaysOpen(t *testing.T, unit string) {
	t.Helper()
	if _, err := askHealth(t); err != nil {
		t.Fatalf("%s does not serve the health: %v", unit, err)
	}
	main := pid(t, unit)
	must(t, syscall.Kill(main, syscall.SIGKILL))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually.In(ctx, t, unit+" is killed", func() bool { return pid(t, unit) != main })
	if answer, err := askHealth(t); err != nil || answer != "ok" {
		t.Errorf("while %s restarts, its port answers %q: %v, want %q", unit, answer, err, "ok")
	}
	awaitActive(t, unit)
}

// standsStill checks that systemd replaces processes that are stopped.
func standsStill(t *testing.T, units []string) {
	t.Helper()
	stopped := map[string]int{}
	for _, unit := range units {
		stopped[unit] = pid(t, unit)
		must(t, syscall.Kill(stopped[unit], syscall.SIGSTOP))
	}
	// The watchdog waits for 30 s, and for the end of a process 15 s at most.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, unit := range units {
		eventually.In(ctx, t, unit+" is replaced", func() bool { now := pid(t, unit); return now != 0 && now != stopped[unit] })
		awaitActive(t, unit)
	}
	serving(t)
}

// askHealth requests the node's health from its port.
func askHealth(t *testing.T) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10248/healthz/ping", http.NoBody)
	must(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

// noneSpeaksForTheUnit checks that the children of quartet.service have another socket for notifications than that of
// systemd, which the unit itself has.
func noneSpeaksForTheUnit(t *testing.T) {
	t.Helper()
	socketOf := func(dir string) string {
		environment, err := os.ReadFile(filepath.Join(dir, "environ"))
		must(t, err)
		for variable := range strings.SplitSeq(string(environment), "\x00") {
			if socket, found := strings.CutPrefix(variable, "NOTIFY_SOCKET="); found {
				return socket
			}
		}
		return ""
	}
	own := socketOf(fmt.Sprintf("/proc/%d", pid(t, "quartet.service")))
	for _, process := range processes(t) {
		dir, _, _ := strings.Cut(process, " ")
		if socket := socketOf(dir); own == "" || socket == own {
			t.Errorf("%s has the socket %q, and the unit %q", process, socket, own)
		}
	}
}

// activeOnlyWhenItServes checks that a standby configmux, which waits for the lock of another process, is not active
// before it has taken over.
func activeOnlyWhenItServes(t *testing.T) {
	t.Helper()
	const unit = "quartet-configmux.service"
	must(t, os.WriteFile("/etc/default/quartet", []byte("CONFIGMUX_FLAGS=--standby\n"), 0o600))
	held, err := statedir.Lock(configmuxState, "configmux")
	must(t, err)
	systemctl(t, "start", "--no-block", unit)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually.In(ctx, t, "configmux stands by", func() bool {
		// A standby answers its own user only.
		_, err := within(t, "configmux", filepath.Join(services, "configmux"), "health", "--state-dir", configmuxState)
		return err == nil
	})
	if state := property(t, unit, "ActiveState"); state != "activating" {
		t.Errorf("a configmux that stands by is %s, want %q", state, "activating")
	}
	must(t, held.Release())
	awaitActive(t, unit)
	if err := serves(t, "configmux"); err != nil {
		t.Errorf("configmux is active and does not serve: %v", err)
	}
	systemctl(t, "stop", unit)
	ended(t, unit)
}

// clusterFlags checks that the lines of docs/howto/run-a-node.md for a node of a cluster reach the processes that use
// its API server, both for the four units and for quartet.service. Nothing answers at that address, and the processes
// run nevertheless.
func clusterFlags(t *testing.T, four []string, web *pod) {
	t.Helper()
	const kubeconfig = "/var/lib/quartet/cluster/kubeconfig"
	const bootstrap = "/etc/kubernetes/bootstrap-kubelet.conf" // the units have a /tmp of their own
	must(t, os.WriteFile(bootstrap, []byte(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: c}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: c, user: {token: abcdef.0123456789abcdef}}]
`), 0o640))
	must(t, os.Chown(bootstrap, 0, groupOf(t)))
	must(t, os.Chmod(bootstrap, 0o640))
	// A node of a cluster serves its API on the machine's network, where the port may be in use.
	web.configure(t, "enableServer: false\n")
	must(t, os.MkdirAll("/etc/default", 0o755))
	must(t, os.WriteFile("/etc/default/quartet", fmt.Appendf(nil, `QUARTET_FLAGS="--kubeconfig=%[1]s --bootstrap-kubeconfig=%[2]s"
CONFIGMUX_FLAGS="--kubeconfig=%[1]s --await-kubeconfig"
SYNCLOOP_FLAGS="--kubeconfig=%[1]s --await-kubeconfig"
NODESTATUS_FLAGS="--kubeconfig=%[1]s --bootstrap-kubeconfig=%[2]s"
`, kubeconfig, bootstrap), 0o600))
	for _, start := range [][]string{{"quartet.service"}, four} {
		systemctl(t, append([]string{"start"}, start...)...)
		serving(t)
		for _, process := range processes(t) {
			dir, name, _ := strings.Cut(process, " ")
			command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
			must(t, err)
			joins := strings.Contains(string(command), "--bootstrap-kubeconfig="+bootstrap+"\x00")
			awaits := strings.Contains(string(command), "--await-kubeconfig\x00")
			hasKubeconfig := strings.Contains(string(command), "--kubeconfig="+kubeconfig+"\x00")
			if joins != (name == "nodestatus") || awaits != (name == "configmux" || name == "syncloop") || hasKubeconfig != (name != "pleg") {
				t.Errorf("%s runs %s as %q, want joins %v, awaits %v and hasKubeconfig %v",
					start, name, command, name == "nodestatus", name == "configmux" || name == "syncloop", name != "pleg")
			}
		}
		systemctl(t, append([]string{"stop"}, start...)...)
	}
}

// ended checks that units are not running, and were not killed.
func ended(t *testing.T, units ...string) {
	t.Helper()
	for _, unit := range units {
		if state, result := property(t, unit, "ActiveState"), property(t, unit, "Result"); state != "inactive" || result != "success" {
			t.Errorf("%s is %s: %s, want %q and %q", unit, state, result, "inactive", "success")
		}
	}
}

// processes returns the names of the running services, of any unit.
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
