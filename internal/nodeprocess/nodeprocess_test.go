package nodeprocess_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeprocess"
	"github.com/quartet-node/quartet/internal/nodeprocess/nodeprocesstest"
	"github.com/quartet-node/quartet/internal/peertls"
)

func TestAProcessIsFoundByItsLock(t *testing.T) {
	dir := t.TempDir()
	pid := nodeprocesstest.Start(t, dir, layout.PLEG, "--config", "kubelet.yaml", "--kubeconfig=/k", "--config=")
	p, err := nodeprocess.Of(dir, layout.PLEG)
	if err != nil || p.PID != pid || p.Dir != dir {
		t.Errorf("Of() = %+v, %v, want the process %d in %s", p, err, pid, dir)
	}
	want := []string{filepath.Join(dir, "kubelet.yaml"), "/k"}
	if got := p.Paths("config", "kubeconfig"); !slices.Equal(got, want) {
		t.Errorf("Paths() = %q, want %q", got, want)
	}
	const none = "no process has the lock"
	if _, err := nodeprocess.Of(dir, layout.SyncLoop); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("Of(syncloop) error = %v, want an error with %q", err, none)
	}
	if err := os.Rename(filepath.Join(dir, "pleg.lock"), filepath.Join(dir, "syncloop.lock")); err != nil {
		t.Fatal(err)
	}
	if _, err := nodeprocess.Of(dir, layout.SyncLoop); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("Of(syncloop) error = %v, want that it has ended: another process has its number", err)
	}
}

func TestAConfigmuxElsewhereIsThatOfTheRunningSyncloop(t *testing.T) {
	files := []string{"--kubeconfig=/k", "--tls-cert=/pki/node.pem", "--tls-key", "pki/node.key", "--tls-ca=/pki/ca.crt"}
	for _, c := range []struct {
		name    string
		args    []string
		address string
		objects bool
	}{
		{"none is named", files, "", false},
		{"one of this machine", append([]string{"--configmux-address=unix:///run/c.sock"}, files...), "", false},
		{"one elsewhere", append([]string{"--configmux-address", "c:7441"}, files...), "c:7441", false},
		{"the last one counts", append(files, "--configmux-address=unix:///c", "--configmux-address=c:7"), "c:7", false},
		{"a site", append(files, "--configmux-address=dns:///c:7441", "--configmux-objects"), "dns:///c:7441", true},
		{"a node without an API server", append([]string{"--configmux-address=c:7441"}, files[1:]...), "c:7441", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			nodeprocesstest.Start(t, dir, layout.SyncLoop, c.args...)
			got, found := nodeprocess.ConfigmuxElsewhere(dir)
			want := nodeprocess.Configmux{}
			if c.address != "" {
				want = nodeprocess.Configmux{Address: c.address, Objects: c.objects, Files: peertls.Files{
					Cert: "/pki/node.pem", Key: filepath.Join(dir, "pki/node.key"), CA: "/pki/ca.crt",
				}}
			}
			if found != (c.address != "") || got != want {
				t.Errorf("ConfigmuxElsewhere() = %+v, %v, want %+v", got, found, want)
			}
		})
	}
}
