package syncloop

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestSocketsOfTheKubeletHaveItsModes: the places where plugins and monitoring meet the node have the owner and the
// modes that a kubelet gives them, so that who could use them still can, and nobody else.
func TestSocketsOfTheKubeletHaveItsModes(t *testing.T) {
	m := newMachine(t)
	m.configmux.speak()
	defer m.start()()
	m.put(newPod("u1", "web", "a")) // the node is not stopped while it still connects
	m.eventually("the pod is ready", m.ready("u1"))
	for path, want := range map[string]fs.FileMode{
		"plugins":                     fs.ModeDir | 0o750,
		"plugins_registry":            fs.ModeDir | 0o750,
		"device-plugins":              fs.ModeDir | 0o750,
		"pod-resources":               fs.ModeDir | 0o750,
		"pods-api":                    fs.ModeDir | 0o750,
		"device-plugins/kubelet.sock": fs.ModeSocket | 0o755,
		// The umask gives a kubelet's 0755; a connection needs the right to write, which nobody but root has of either.
		"pod-resources/kubelet.sock": fs.ModeSocket | 0o600,
		"pods-api/pods-api.sock":     fs.ModeSocket | 0o600,
	} {
		var info fs.FileInfo
		m.eventually(path+" is there", func() bool {
			var err error
			info, err = os.Lstat(filepath.Join(m.cfg.RootDir, path))
			return err == nil && (info.Mode()&fs.ModeSocket == 0 || info.Mode() == want)
		})
		owner, ok := info.Sys().(*syscall.Stat_t)
		if info.Mode() != want || !ok || int(owner.Uid) != os.Getuid() {
			t.Errorf("%s is %v of user %d, want %v of %d", path, info.Mode(), owner.Uid, want, os.Getuid())
		}
	}
}
