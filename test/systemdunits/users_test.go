package systemdunits

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/require"
)

// program is the command line, where every user may start it.
const program = services + "/quartet"

// userOf returns the user of a service's unit.
func userOf(t *testing.T, name string) int {
	t.Helper()
	if name != "configmux" && name != "nodestatus" {
		return 0
	}
	known, err := user.Lookup("quartet-" + name)
	require.NoError(t, err)
	uid, err := strconv.Atoi(known.Uid)
	must(t, err)
	return uid
}

func groupOf(t *testing.T) int {
	t.Helper()
	known, err := user.LookupGroup("quartet")
	require.NoError(t, err)
	gid, err := strconv.Atoi(known.Gid)
	must(t, err)
	return gid
}

// within runs a command as the user of a unit, with the unit's view of the files.
func within(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	flags := []string{fmt.Sprintf("--target=%d", pid(t, "quartet-"+name+".service")), "--mount"}
	if uid := userOf(t, name); uid != 0 {
		flags = append(flags, fmt.Sprintf("--setuid=%d", uid), fmt.Sprintf("--setgid=%d", groupOf(t)))
	}
	out, err := exec.CommandContext(t.Context(), "nsenter", append(append(flags, "--"), args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// apply applies a config map and a secret.
func apply(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(file, fmt.Appendf(nil, `apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s}
stringData: {password: "%[1]s"}
`, name), 0o600))
	if out, err := exec.CommandContext(t.Context(), program, "apply", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("apply %s: %v\n%s", name, err, out)
	}
}

// applied waits until configmux has the config maps and secrets of these names.
func applied(t *testing.T, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, kind := range []string{"configmaps", "secrets"} {
		for _, name := range names {
			eventually.In(ctx, t, fmt.Sprintf("configmux has %s in its %s", name, kind), func() bool {
				out, err := exec.CommandContext(ctx, program, "get", kind).CombinedOutput()
				return err == nil && strings.Contains(string(out), name)
			})
		}
	}
}

// stateIsKept checks that a node that changes between quartet.service, whose processes are root, and the four units,
// some of which have users of their own, keeps what was applied, and its Node. That holds for a process of the last
// release, too, after the files were given back to root. None runs before and after it.
func stateIsKept(t *testing.T, four []string, web *pod) {
	t.Helper()
	const node = "nodestatus.json"
	systemctl(t, "start", "quartet.service")
	serving(t)
	web.starts(t)
	apply(t, "first")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually.In(ctx, t, "the Node is saved", func() bool { return exists("/var/lib/quartet/" + node) })

	systemctl(t, append([]string{"start"}, four...)...)
	ended(t, "quartet.service")
	serving(t)
	applied(t, "first")
	web.noticesNothing(t, "the move of the units to their own users")
	apply(t, "second")
	if !exists("/var/lib/quartet/nodestatus/" + node) {
		t.Error("the Node was not moved to the unit of nodestatus")
	}
	usersOfTheirOwn(t)

	systemctl(t, "start", "quartet.service")
	ended(t, four...)
	serving(t)
	applied(t, "first", "second")
	web.noticesNothing(t, "the move back to root")
	apply(t, "third")
	systemctl(t, append([]string{"start"}, four...)...)
	ended(t, "quartet.service")
	serving(t)
	applied(t, "first", "second", "third")
	web.noticesNothing(t, "the second move to their own users")
	systemctl(t, append([]string{"stop"}, four...)...)
	ended(t, four...)
	releaseFindsWhatWasApplied(t)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// releaseFindsWhatWasApplied runs the configmux of the last release as its unit does: as root.
func releaseFindsWhatWasApplied(t *testing.T) {
	t.Helper()
	released := filepath.Join(harness.BinDir(t), "released", "configmux")
	if _, err := os.Stat(released); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Logf("the last release is not tried: %v: make test-tools", err) // the rest of the test needs no release
		return
	}
	for _, name := range []string{"configmux", "nodestatus"} {
		if out, err := exec.CommandContext(t.Context(), program, "prepare", "--unit", name, "--undo").CombinedOutput(); err != nil {
			t.Fatalf("prepare --unit %s --undo: %v\n%s", name, err, out)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, released, "--config", kubeletYAML)
	must(t, cmd.Start())
	applied(t, "first", "second", "third")
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("the released configmux ended by itself")
	}
}

// usersOfTheirOwn tries as the users of configmux and nodestatus what the owner of one of them would try.
func usersOfTheirOwn(t *testing.T) {
	t.Helper()
	for name, refused := range map[string][]string{
		"configmux": {
			"cat /var/lib/quartet/nodestatus/nodestatus.json", "touch /var/lib/quartet/cluster/kubeconfig",
			"touch /run/quartet/nodestatus/nodestatus.sock2", program + " get workers", program + " debug pleg log-level",
		},
		"nodestatus": {
			"cat /var/lib/quartet/configmux/secrets.key", "cat /var/lib/quartet/secrets.key",
			"touch /var/lib/quartet/configmux/applied/pod", "touch /etc/systemd/logind.conf.d/mine",
			program + " delete configmap first", program + " get secrets", program + " debug syncloop log-level",
		},
	} {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid(t, "quartet-"+name+".service")))
		must(t, err)
		if want := fmt.Sprintf("\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", userOf(t, name)); !strings.Contains(string(status), want) {
			t.Errorf("%s does not run as its user: %s", name, status)
		}
		for _, command := range append(refused,
			"cat /etc/shadow", "ls /var/lib/quartet", "touch /var/lib/quartet/evictions.json", "cat /var/lib/quartet/evictions.json",
			"cat /var/lib/quartet/syncloop.reserve", "touch /run/quartet/name", "touch /run/quartet/users", "rm -f /run/quartet/pleg/pleg.sock",
			"mv /run/quartet/syncloop/syncloop.sock /run/quartet/syncloop/other", "touch /etc/quartet/kubelet.yaml",
		) {
			if out, err := within(t, name, strings.Fields(command)...); err == nil {
				t.Errorf("the user of %s may run %q: %s", name, command, out)
			}
		}
	}
	// What they need they may do.
	for name, allowed := range map[string][]string{
		"configmux":  {program + " get node", "touch /var/lib/quartet/configmux/mine"},
		"nodestatus": {program + " get workers", "touch /var/lib/quartet/cluster/mine"},
	} {
		for _, command := range allowed {
			last := ""
			wait := eventually.Wait{State: func() string { return last }, Interval: 100 * time.Millisecond}
			wait.That(t, "the user of "+name+" may run "+command, func() bool {
				var err error
				last, err = within(t, name, strings.Fields(command)...)
				return err == nil
			})
		}
	}
	info, err := os.Stat("/var/lib/quartet/configmux/secrets.key")
	must(t, err)
	if info.Mode() != fs.FileMode(0o600) {
		t.Errorf("the key of secrets has the mode %v, want 0600", info.Mode())
	}
}
