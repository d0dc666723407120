package volumeprojected_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/killpoint"
)

// killedSecret returns the volume of the test below, and functions that set its first and its later content.
func killedSecret(t *testing.T, root string) (v *volume, first, later func()) {
	t.Helper()
	r := newRig(t)
	r.dir = root
	v = r.volume(v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "login", DefaultMode: ptr[int32](0o400)}})
	v.FSGroup = ptr[int64](4711)
	return v, func() { r.objects.putSecret("login", false, "key", "1", "old", "1") }, func() { r.objects.putSecret("login", false, "key", "2", "new", "2") }
}

// versions matches the name of a version, which differs each time.
var versions = regexp.MustCompile(`\.\.\d{4}_[0-9_.]+`)

// killedCalls returns the system calls of a secret volume's life: setup, update, update without a change, and removal.
func killedCalls() []string {
	const of = "u-1/volumes/kubernetes.io~secret"
	const at = of + "/v"
	file := func(name string) []string {
		name = at + "/VERSION/" + name
		return []string{"create " + name, "write " + name, "chown " + name, "chmod " + name}
	}
	version := func(names ...string) []string {
		calls := []string{"mkdir " + at + "/VERSION", "chown " + at + "/VERSION", "chmod " + at + "/VERSION"}
		for _, name := range names {
			calls = append(calls, file(name)...)
		}
		return append(calls, "link "+at+"/..data_tmp", "rename "+at+"/..data_tmp "+at+"/..data")
	}
	gone := []string{"remove " + at, "remove " + of + "/.new-v"}
	return slices.Concat(
		[]string{"mkdir u-1", "mkdir u-1/volumes", "mkdir " + of},
		[]string{"mkdir " + of + "/.new-v", "chown " + of + "/.new-v", "chmod " + of + "/.new-v", "rename " + of + "/.new-v " + at, "mount " + at},
		version("key", "old"), []string{"link " + at + "/key", "link " + at + "/old"},
		version("key", "new"), []string{"remove " + at + "/old", "link " + at + "/new"},
		[]string{"remove " + at + "/VERSION", "remove " + at + "/VERSION/old", "remove " + at + "/VERSION/key", "remove " + at + "/VERSION"},
		[]string{"unmount " + at, "remove " + at}, gone, gone, // the test removes the volume once more
	)
}

// TestAKillBeforeAnySystemCallLeavesWholeSecretsAndNothingElse kills a real process before each system call of a
// volume's life.
func TestAKillBeforeAnySystemCallLeavesWholeSecretsAndNothingElse(t *testing.T) {
	if root := os.Getenv("VOLUMEPROJECTED_TEST_ROOT"); root != "" {
		v, first, later := killedSecret(t, root)
		first()
		v.mustSetUp()
		later()
		v.mustSetUp()
		v.mustSetUp()
		if err := v.tearDown(); err != nil {
			t.Fatal(err)
		}
		return
	}
	newRig(t) // skips the test without the necessary rights
	want := killedCalls()
	for n := range len(want) + 1 {
		for _, comesBack := range []bool{true, false} {
			killedSecretAt(t, want, n, comesBack)
		}
	}
}

// killedSecretAt kills a process before its nth call, or not at all, and lets the next process take over.
func killedSecretAt(t *testing.T, want []string, n int, comesBack bool) {
	t.Helper()
	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillBeforeAnySystemCallLeavesWholeSecretsAndNothingElse$")
	// Temporary files of a killed process are removed with this test.
	cmd.Env = append(os.Environ(), "VOLUMEPROJECTED_TEST_ROOT="+root, "TMPDIR="+t.TempDir())
	tr := &killpoint.Tracer{Root: root, Kill: n}
	status := tr.Run(t, cmd)
	if n > 0 {
		want = want[:n]
	}
	for i := range tr.Calls {
		tr.Calls[i] = versions.ReplaceAllString(tr.Calls[i], "VERSION")
	}
	if !slices.Equal(tr.Calls, want) || status.Signaled() != (n > 0) {
		t.Fatalf("the process ended with %#x after\n%s\nwant\n%s", status, strings.Join(tr.Calls, "\n"), strings.Join(want, "\n"))
	}
	v, _, later := killedSecret(t, root)
	t.Cleanup(func() { _ = unix.Unmount(v.Dir, unix.MNT_DETACH) })
	if data, err := os.ReadFile(filepath.Join(v.Dir, "..data/key")); err == nil {
		other := map[string]string{"1": "old", "2": "new"}[string(data)]
		if again, err := os.ReadFile(filepath.Join(v.Dir, "..data", other)); err != nil || string(again) != string(data) {
			t.Errorf("killed before call %d: beside key %q there is %s %q, %v", n, data, other, again, err)
		}
	}
	if comesBack {
		later()
		v.mustSetUp()
		v.has("key", "2", "new", "2")
		if kinds, _ := v.mounted(); len(kinds) != 1 {
			t.Errorf("killed before call %d: %v is mounted", n, kinds)
		}
		if entries, err := os.ReadDir(v.Dir); err != nil || len(entries) != 4 {
			t.Errorf("killed before call %d: there is %v, %v", n, entries, err)
		}
	}
	if err := v.tearDown(); err != nil {
		t.Fatalf("killed before call %d: %v", n, err)
	}
	if kinds, _ := v.mounted(); len(kinds) > 0 {
		t.Errorf("killed before call %d: afterwards %v is mounted", n, kinds)
	}
	if entries, err := os.ReadDir(filepath.Dir(v.Dir)); err != nil || len(entries) > 0 {
		t.Errorf("killed before call %d: afterwards there is %v, %v", n, entries, err)
	}
}
