package preparecmd_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/quartet-node/quartet/cmd/quartet/internal/preparecmd"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/require"
)

// unitState returns the state directory of a node that has run as root, and a function for the paths of its files.
func unitState(t *testing.T) (state string, at func(name string) string) {
	t.Helper()
	asRoot(t)
	dir, err := os.MkdirTemp("", "quartet-unit-")
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	must(t, os.Chmod(dir, 0o711))
	state = filepath.Join(dir, "state")
	at = func(name string) string { return filepath.Join(state, name) }
	for _, name := range []string{"applied", "pki", "claims/n/data", "run"} {
		must(t, os.MkdirAll(at(name), 0o700))
	}
	must(t, os.Chmod(at("claims/n/data"), 0o777))
	for name, content := range map[string]string{
		"applied/pod": "a pod", "secrets.key": "a key", "configmux-manifests.json": "manifests", "api-pods": "pods",
		"nodestatus.json": "a node", "evictions.json": "evictions", "pki/kubelet-server-1.pem": "a serving key",
		"pki/kubelet-client-1.pem": "a client key",
	} {
		must(t, os.WriteFile(at(name), []byte(content), 0o600))
	}
	return state, at
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	configmuxUser, nodestatusUser = 10241, 10244
	unitsGroup                    = 10240
)

func giveBoth(t *testing.T, state string) {
	t.Helper()
	must(t, preparecmd.Give(state, layout.ConfigMux, configmuxUser, unitsGroup))
	must(t, preparecmd.Give(state, layout.NodeStatus, nodestatusUser, unitsGroup))
}

// has fails the test unless a file is a regular one of a user with a content.
func has(t *testing.T, path, content string, uid uint32) {
	t.Helper()
	info, err := os.Lstat(path)
	must(t, err)
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("%s has %q, %v, want %q", path, got, err, content)
	}
	if owner := info.Sys().(*syscall.Stat_t); !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 || owner.Uid != uid {
		t.Errorf("%s is %v of user %d, want a regular file 0600 of %d", path, info.Mode(), owner.Uid, uid)
	}
}

// TestAUnitGetsTheFilesOfItsService: what root's services have written is the unit's, and root's again after an undo.
// Meanwhile a service of root finds it by a link.
func TestAUnitGetsTheFilesOfItsService(t *testing.T) {
	state, at := unitState(t)
	files := map[string]string{
		"applied/pod": "a pod", "secrets.key": "a key", "configmux-manifests.json": "manifests", "api-pods": "pods",
	}
	for range 2 {
		for range 2 { // the second one is that of a restart
			giveBoth(t, state)
			for name, content := range files {
				has(t, at("configmux/"+name), content, configmuxUser)
				if got, err := os.ReadFile(at(name)); err != nil || string(got) != content {
					t.Errorf("by its link %s has %q, %v, want %q", name, got, err, content)
				}
			}
			has(t, at("nodestatus/nodestatus.json"), "a node", nodestatusUser)
		}
		for _, service := range []layout.Service{layout.ConfigMux, layout.NodeStatus} {
			must(t, preparecmd.TakeBack(state, service))
			must(t, preparecmd.TakeBack(state, service))
		}
		for name, content := range files {
			has(t, at(name), content, 0)
		}
		has(t, at("nodestatus.json"), "a node", 0)
		has(t, at("evictions.json"), "evictions", 0)
	}
}

// TestAMoveThatWasInterruptedGoesOn: with a process that was killed between any two steps.
func TestAMoveThatWasInterruptedGoesOn(t *testing.T) {
	for what, interrupted := range map[string]func(state string) error{
		"before the link": func(state string) error { return os.Remove(filepath.Join(state, "applied")) },
		"before the owner": func(state string) error {
			return errors.Join(os.Chown(filepath.Join(state, "configmux/applied"), 0, 0),
				os.Chown(filepath.Join(state, "configmux/applied/pod"), 0, 0))
		},
		"before the way back": func(state string) error {
			return errors.Join(os.Remove(filepath.Join(state, "applied")), os.Remove(filepath.Join(state, "secrets.key")))
		},
		"on the way back": func(state string) error {
			return errors.Join(os.Remove(filepath.Join(state, "applied")),
				os.Rename(filepath.Join(state, "configmux/applied"), filepath.Join(state, "applied")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			state, at := unitState(t)
			giveBoth(t, state)
			must(t, interrupted(state))
			giveBoth(t, state)
			has(t, at("configmux/applied/pod"), "a pod", configmuxUser)
			has(t, at("applied/pod"), "a pod", configmuxUser)
			must(t, interrupted(state))
			must(t, preparecmd.TakeBack(state, layout.ConfigMux))
			if got, err := os.ReadFile(at("applied/pod")); err != nil || string(got) != "a pod" {
				t.Errorf("the pod is %q, %v", got, err)
			}
			has(t, at("secrets.key"), "a key", 0)
		})
	}
}

// TestWhatRootHasWrittenSinceCounts: a service of root replaces a link by a file.
func TestWhatRootHasWrittenSinceCounts(t *testing.T) {
	state, at := unitState(t)
	giveBoth(t, state)
	must(t, os.Remove(at("api-pods")))
	must(t, os.WriteFile(at("api-pods"), []byte("newer pods"), 0o600))
	must(t, os.WriteFile(at("applied/another"), []byte("another pod"), 0o600))
	giveBoth(t, state)
	has(t, at("configmux/api-pods"), "newer pods", configmuxUser)
	has(t, at("configmux/api-pods.replaced"), "pods", configmuxUser)
	has(t, at("configmux/applied/another"), "another pod", configmuxUser)
	must(t, os.Remove(at("api-pods")))
	must(t, os.WriteFile(at("api-pods"), []byte("newest pods"), 0o600))
	must(t, preparecmd.TakeBack(state, layout.ConfigMux))
	has(t, at("api-pods"), "newest pods", 0)
}

// TestTheUserOfAUnitCannotTouchWhatIsAnothers tries as the user of a unit what one who owns its service would try.
func TestTheUserOfAUnitCannotTouchWhatIsAnothers(t *testing.T) {
	state, at := unitState(t)
	giveBoth(t, state)
	create := func(name string) error { return os.WriteFile(at(name), nil, 0o600) }
	read := func(name string) error { _, err := os.ReadFile(at(name)); return err }
	replace := func(from, to string) error {
		if err := create(from); err != nil {
			return err
		}
		return os.Rename(at(from), at(to))
	}
	both := map[string]func(own string) error{
		"read the evictions":                 func(string) error { return read("evictions.json") },
		"read the serving key":               func(string) error { return read("pki/kubelet-server-1.pem") },
		"list the state directory":           func(string) error { _, err := os.ReadDir(state); return err },
		"make a file of syncloop":            func(string) error { return create("resizes") },
		"remove a file of syncloop":          func(string) error { return os.Remove(at("evictions.json")) },
		"remove a link of its own":           func(string) error { return os.Remove(at("applied")) },
		"rename its own directory":           func(own string) error { return os.Rename(at(own), at("another")) },
		"replace a file of syncloop":         func(own string) error { return replace(own+"/mine", "evictions.json") },
		"replace a link":                     func(own string) error { return replace(own+"/mine", "secrets.key") },
		"take a file of syncloop by a link":  func(own string) error { return os.Link(at("evictions.json"), at(own+"/hard")) },
		"write the data of a claim of a pod": func(string) error { return create("claims/n/data/file") },
	}
	for user, tries := range map[int]struct {
		own     string
		refused map[string]func(own string) error
	}{
		configmuxUser: {"configmux", map[string]func(string) error{
			"read the state of nodestatus": func(string) error { return read("nodestatus/nodestatus.json") },
			"write the kubeconfig":         func(string) error { return create("cluster/kubeconfig") },
		}},
		nodestatusUser: {"nodestatus", map[string]func(string) error{
			"read the key of secrets":           func(string) error { return read("configmux/secrets.key") },
			"read the key of secrets by a link": func(string) error { return read("secrets.key") },
			"apply a pod":                       func(string) error { return create("configmux/applied/pod2") },
		}},
	} {
		for _, refused := range []map[string]func(string) error{both, tries.refused} {
			for what, do := range refused {
				if err := as(user, func() error { return do(tries.own) }); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("user %d may %s: %v", user, what, err)
				}
			}
		}
		if err := as(user, func() error { return create(tries.own + "/file") }); err != nil {
			t.Errorf("user %d may not write in its own directory: %v", user, err)
		}
	}
}

// TestRootFollowsNoLinkOfAUnit: the user of a unit has put links to a file of root into its directory.
func TestRootFollowsNoLinkOfAUnit(t *testing.T) {
	for what, trick := range map[string]struct {
		do func(root, own string) error
		// refused is whether an operator has to remove the link.
		refused bool
	}{
		"a symbolic link": {func(root, own string) error { return os.Symlink(root, filepath.Join(own, "applied/link")) }, false},
		"a hard link":     {func(root, own string) error { return os.Link(root, filepath.Join(own, "applied/link")) }, true},
		"a link in the place of a directory": {func(root, own string) error {
			return errors.Join(os.RemoveAll(filepath.Join(own, "applied")),
				os.Symlink(filepath.Dir(root), filepath.Join(own, "applied")))
		}, true},
	} {
		t.Run(what, func(t *testing.T) {
			state, _ := unitState(t)
			giveBoth(t, state)
			root := filepath.Join(filepath.Dir(state), "roots", "file")
			must(t, os.Mkdir(filepath.Dir(root), 0o700))
			must(t, os.WriteFile(root, []byte("root's"), 0o600))
			must(t, trick.do(root, filepath.Join(state, "configmux")))
			err := errors.Join(preparecmd.Give(state, layout.ConfigMux, configmuxUser, unitsGroup),
				preparecmd.TakeBack(state, layout.ConfigMux))
			if (err != nil) != trick.refused || err != nil && !strings.Contains(err.Error(), "remove") {
				t.Errorf("error = %v, want one %v, with what to do", err, trick.refused)
			}
			has(t, root, "root's", 0)
		})
	}
}

// TestANodeThatHasJoinedKeepsItsCredentials: the user of nodestatus renews them, and that of configmux reads them.
func TestANodeThatHasJoinedKeepsItsCredentials(t *testing.T) {
	state, at := unitState(t)
	must(t, os.Symlink("kubelet-client-1.pem", at("pki/kubelet-client-current.pem")))
	must(t, os.WriteFile(at("kubeconfig"), []byte(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: c}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: c, user: {client-certificate: `+at("pki/kubelet-client-current.pem")+`, client-key: `+
		at("pki/kubelet-client-current.pem")+`}}]
`), 0o640))
	for range 2 {
		giveBoth(t, state)
		for _, user := range []int{0, configmuxUser, nodestatusUser} {
			must(t, as(user, func() error {
				config, err := clientcmd.LoadFromFile(at("kubeconfig"))
				if err != nil {
					return err
				}
				named := config.AuthInfos["c"].ClientKey
				if key, err := os.ReadFile(named); err != nil || string(key) != "a client key" || named != config.AuthInfos["c"].ClientCertificate {
					t.Errorf("for user %d the key %s is %q, %v", user, named, key, err)
				}
				return nil
			}))
		}
	}
	replacing := func() error {
		return errors.Join(os.WriteFile(at("cluster/pki/new"), nil, 0o600),
			os.Rename(at("cluster/pki/new"), at("cluster/pki/kubelet-client-current.pem")))
	}
	must(t, as(nodestatusUser, replacing))
	if err := as(configmuxUser, replacing); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the user of configmux may replace the certificate of the node: %v", err)
	}
}

// TestTheUsersOfUnitsAreNamed beside those that the operator has named, once.
func TestTheUsersOfUnitsAreNamed(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "users"), []byte("# mine\npleg 7\n"), 0o644))
	for range 2 {
		must(t, preparecmd.NameUnits(dir))
	}
	text, err := os.ReadFile(filepath.Join(dir, "users"))
	must(t, err)
	want := []string{"# mine", "pleg 7", "configmux quartet-configmux", "nodestatus quartet-nodestatus", ""}
	if got := strings.Split(string(text), "\n"); !slices.Equal(got, want) {
		t.Errorf("the file has %q, want %q", got, want)
	}
}

// TestTheSocketsOfAUnitGoWithAnUndo, those of a service of root do not.
func TestTheSocketsOfAUnitGoWithAnUndo(t *testing.T) {
	asRoot(t)
	for uid, want := range map[int]bool{0: true, configmuxUser: false} {
		dir := filepath.Join(t.TempDir(), "configmux")
		must(t, os.Mkdir(dir, 0o711))
		must(t, os.WriteFile(filepath.Join(dir, "configmux.sock"), nil, 0o600))
		must(t, os.Chown(dir, uid, 0))
		must(t, preparecmd.TakeSockets(dir))
		must(t, preparecmd.TakeSockets(dir+"-none"))
		if _, err := os.Stat(filepath.Join(dir, "configmux.sock")); (err == nil) != want {
			t.Errorf("the socket of user %d: %v, want that it is there: %v", uid, err, want)
		}
	}
}
