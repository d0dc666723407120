package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asKubelet creates a link with the name kubelet to the quartet of an installation, elsewhere, and returns a command
// that starts it.
func asKubelet(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	link := filepath.Join(t.TempDir(), "kubelet")
	if err := os.Symlink(filepath.Join(dir, "quartet"), link); err != nil {
		t.Fatal(err)
	}
	cmd := quartet(t, dir, args...)
	cmd.Path, cmd.Args[0] = link, link
	return cmd
}

// write writes a file below a directory.
func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const configHeader = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// kubeconfig is a readable kubeconfig; nothing listens at its address.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: x
`

// TestAProgramCalledKubeletTakesTheKubeletsCommandLine, as in kubeadm's unit.
func TestAProgramCalledKubeletTakesTheKubeletsCommandLine(t *testing.T) {
	dir := install(t, obedient)
	root := filepath.Join(dir, "root")
	config := write(t, dir, "config.yaml", configHeader+"maxPods: 50\nclusterDNS: [10.0.0.1]\n")
	write(t, dir, "conf.d/20-late.conf", configHeader+"maxPods: 70\n")
	write(t, dir, "conf.d/10-early.conf", configHeader+"maxPods: 60\nsyncFrequency: 9s\n")
	write(t, dir, "conf.d/30-other.yaml", "this is not looked at")
	way := write(t, dir, "kubelet.conf", kubeconfig)
	cmd := asKubelet(
		t,
		dir,
		"--bootstrap-kubeconfig="+filepath.Join(
			dir,
			"not-there.conf",
		),
		"--kubeconfig="+way,
		"--config="+config,
		"--config-dir",
		filepath.Join(dir, "conf.d"),
		"--root-dir="+root,
		"--cert-dir="+filepath.Join(root, "pki"),
		"--container-runtime-endpoint=unix:///run/nobody/containerd.sock",
		"--pod-infra-container-image=registry.k8s.io/pause:3.10",
		"--hostname_override=N1",
		"--node-labels=a=b,c",
		"-v=2",
		"--lock-file=/x",
		"--cloud-provider=external",
		"--eviction-hard=memory.available<1Gi",
		"--register-with-taints=k=v:NoSchedule",
		"--anonymous-auth=false",
	)
	run(t, dir, cmd)
	log := logOf(t, dir)
	for _, want := range []string{
		"--state-dir=" + filepath.Join(root, "quartet"), "--root-dir=" + root, "--hostname-override=N1", "--node-labels=a=b,c=", "--cloud-provider=external",
		"--cert-dir=" + filepath.Join(root, "pki"), "--kubeconfig=" + way, "no effect in Quartet\" flags=--lock-file",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	effective, err := os.ReadFile(filepath.Join(root, "quartet", "kubelet.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"maxPods: 70\n", "syncFrequency: 9s\n", "clusterDNS:\n- 10.0.0.1\n", "containerRuntimeEndpoint: unix:///run/nobody/containerd.sock\n",
		"evictionHard:\n  memory.available: 1Gi\n", "registerWithTaints:\n- effect: NoSchedule\n  key: k\n  value: v\n", "address: 0.0.0.0\n", "  verbosity: 2\n",
	} {
		if !strings.Contains(string(effective), want) {
			t.Errorf("the configuration lacks %q:\n%s", want, effective)
		}
	}
	if info, err := os.Stat(filepath.Join(root, "quartet", "kubelet.yaml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the configuration has the mode %v: %v, want Perm 0o600", info.Mode(), err)
	}
}

func TestKubeletEndsWhenItsConfigurationIsWrong(t *testing.T) {
	dir := install(t, obedient)
	wrong := write(t, dir, "wrong.yaml", configHeader+"maxPods: -1\nnoSuchField: 1\n")
	good := write(t, dir, "good.yaml", configHeader)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":        {[]string{"--frobnicate=1"}, "unknown flag: --frobnicate"},
		"unexpected argument": {[]string{"run"}, `unexpected argument "run"`},
		"no config":           {[]string{"--config=" + filepath.Join(dir, "none.yaml")}, "none.yaml: no such file"},
		"wrong config":        {[]string{"--config=" + wrong}, wrong + ":4: noSuchField: there is no such field"},
		"wrong flag":          {[]string{"--config=" + good, "--max-pods=-3"}, "--max-pods: maxPods: is -3, must be more than 0"},
		"no drop-ins":         {[]string{"--config-dir=" + filepath.Join(dir, "none.d")}, "none.d: no such file"},
		"no kubeconfig":       {[]string{"--kubeconfig=" + filepath.Join(dir, "none.conf")}, "none.conf: no such file"},
		"no bootstrap": {
			[]string{"--kubeconfig=" + filepath.Join(dir, "none.conf"), "--bootstrap-kubeconfig=" + filepath.Join(dir, "boot.conf")}, "boot.conf: no such file",
		},
		"unknown cloud": {[]string{"--cloud-provider=aws"}, `--cloud-provider: "aws" is not known: must be external`},
		"wrong labels":  {[]string{"--node-labels=node-role.kubernetes.io/x="}, "labels of kubernetes.io and k8s.io are reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			out := expectFailure(t, dir, append([]string{"kubelet", "--root-dir", filepath.Join(dir, "root")}, test.args...)...)
			if !strings.HasPrefix(out, "quartet: ") || !strings.Contains(out, test.want) || strings.Contains(out, "up with") {
				t.Errorf("got %q, want one error with %q", out, test.want)
			}
		})
	}
}

func TestKubeletSaysItsVersion(t *testing.T) {
	dir := install(t, obedient)
	cmd := asKubelet(t, dir, "--version")
	cmd.Stdout = nil
	out, err := cmd.Output()
	if err != nil || !strings.HasPrefix(string(out), "Kubernetes v1.") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("Output() = %q, %v, want text beginning with %q and %q once", out, err, "Kubernetes v1.", "\n")
	}
}
