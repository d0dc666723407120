package nodeconfig

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestServicesThatUseTheAPIServerTakeAKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte("kind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(file))
	for _, service := range []Service{ConfigMux, SyncLoop, NodeStatus} {
		for given, want := range map[string]string{file: file, "kubeconfig": file, "": ""} {
			if got := parse(t, service, "--kubeconfig", given).Kubeconfig; got != want {
				t.Errorf("%s --kubeconfig %q: has %q, want %q", service, given, got, want)
			}
		}
	}
	if _, err := Parse(
		PLEG,
		[]string{"--kubeconfig", file},
		io.Discard,
	); err == nil ||
		!strings.Contains(err.Error(), "unknown flag: --kubeconfig") {
		t.Errorf("pleg: got %v, want it not to have the flag", err)
	}
}

// TestTheKubeconfigOfASyncloopInAContainerIsAPathOfTheMachine checks a path that does not exist before the root
// directory is changed.
func TestTheKubeconfigOfASyncloopInAContainerIsAPathOfTheMachine(t *testing.T) {
	if got := parse(t, SyncLoop, "--host-root=/host", "--kubeconfig=/not/here").Kubeconfig; got != "/not/here" {
		t.Errorf("has %q, want %q", got, "/not/here")
	}
	if _, err := Parse(
		SyncLoop,
		[]string{"--host-root=/host", "--kubeconfig=here"},
		io.Discard,
	); err == nil ||
		!strings.Contains(err.Error(), `--kubeconfig: "here" must be an absolute path`) {
		t.Errorf("Parse() error = %v, want an error with %q", err, `--kubeconfig: "here" must be an absolute path`)
	}
}

func TestAnUnreadableKubeconfigIsReportedWithARemedy(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file or directory",
		dir:                        "is a directory",
		empty:                      "is empty",
	} {
		_, err := Parse(NodeStatus, []string{"--kubeconfig", path}, io.Discard)
		if err == nil {
			t.Errorf("%s is accepted", path)
			continue
		}
		for _, part := range []string{"--kubeconfig: ", path, want, "name a file that exists and may be read, or leave the flag out"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error does not say %q: %v", path, part, err)
			}
		}
	}
}

// TestAKubeconfigOnAFailingDiskIsNotWrong: its pods run on from the checkpoint, and the file is read again.
func TestAKubeconfigOnAFailingDiskIsNotWrong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.Symlink("/proc/self/mem", path); err != nil { // of which no read at offset 0 succeeds
		t.Fatal(err)
	}
	for _, flag := range []string{"--kubeconfig=", "--bootstrap-kubeconfig="} {
		args := []string{flag + path}
		if flag != "--kubeconfig=" {
			args = append(args, "--kubeconfig="+path)
		}
		cfg, err := Parse(NodeStatus, args, io.Discard)
		if err != nil || cfg.Kubeconfig != path {
			t.Errorf("%v: Parse() = %q, %v, want %q", args, cfg.Kubeconfig, err, path)
		}
	}
}

// TestTheFieldsOfTheAPIServerAreActedOn: no service reports them as fields without an effect.
func TestTheFieldsOfTheAPIServerAreActedOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" +
		"kubeAPIQPS: 5\nkubeAPIBurst: 10\neventRecordQPS: 5\neventBurst: 10\ncontentType: application/json\nregisterNode: false\nconfigMapAndSecretChangeDetectionStrategy: Cache\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, service := range Services() {
		cfg := parse(t, service, "--config", file)
		if k := cfg.Kubelet; *k.KubeAPIQPS != 5 || k.KubeAPIBurst != 10 || k.ContentType != "application/json" ||
			*k.RegisterNode ||
			k.ConfigMapAndSecretChangeDetectionStrategy != "Cache" {
			t.Errorf("%s has %d, %d, %s and %t", service, *k.KubeAPIQPS, k.KubeAPIBurst, k.ContentType, *k.RegisterNode)
		}
		if len(cfg.Unsupported) > 0 {
			t.Errorf("%s names %v, want nothing", service, cfg.Unsupported)
		}
	}
}
