package nodeconfig

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMetricsAreServedBesideTheSocketByDefault(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "unix:///run/quartet/pleg/pleg-metrics.sock"},
		{[]string{"--pleg-address", "unix:///s/node/pleg.sock"}, "unix:///s/node/pleg-metrics.sock"},
		{[]string{"--listen", "unix:///s/second"}, "unix:///s/second-metrics.sock"},
		{[]string{"--metrics-listen", "unix:///m/p.sock"}, "unix:///m/p.sock"},
		{[]string{"--metrics-listen", "127.0.0.1:9101"}, "127.0.0.1:9101"},
		{[]string{"--metrics-listen", "[::1]:9101"}, "[::1]:9101"},
		{[]string{"--metrics-listen", "none"}, ""},
	} {
		if got := parse(t, PLEG, tc.args...).MetricsListen; got != tc.want {
			t.Errorf("%v: metrics at %q, want %q", tc.args, got, tc.want)
		}
	}
}

// TestTheRuntimeOfTheFlagTakesTheImagesWithIt checks that the flag also sets the image endpoint, unless the file has
// another one.
func TestTheRuntimeOfTheFlagTakesTheImagesWithIt(t *testing.T) {
	const flag = "unix:///other/containerd.sock"
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nimageServiceEndpoint: unix:///images.sock\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, service := range Services() {
		k := parse(t, service, "--container-runtime-endpoint", flag).Kubelet
		if k.ContainerRuntimeEndpoint != flag || k.ImageServiceEndpoint != flag {
			t.Errorf("%s: runtime at %s, images at %s, want %s and %s",
				service, k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint, flag, flag)
		}
		k = parse(t, service, "--config", file, "--container-runtime-endpoint", flag).Kubelet
		if k.ContainerRuntimeEndpoint != flag || k.ImageServiceEndpoint != "unix:///images.sock" {
			t.Errorf("%s, with a file: runtime at %s, images at %s, want %s and %q",
				service, k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint, flag, "unix:///images.sock")
		}
	}
}

// TestTheAddressOfARuntimeMayBeAPath, as for a kubelet.
func TestTheAddressOfARuntimeMayBeAPath(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	noError(
		t,
		os.WriteFile(
			file,
			[]byte(
				"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: /run/a.sock\nimageServiceEndpoint: /run/b.sock\n",
			),
			0o600,
		),
	)
	if k := parse(
		t,
		SyncLoop,
		"--config",
		file,
	).Kubelet; k.ContainerRuntimeEndpoint != "unix:///run/a.sock" ||
		k.ImageServiceEndpoint != "unix:///run/b.sock" {
		t.Errorf("got %s and %s, want %q and %q",
			k.ContainerRuntimeEndpoint, k.ImageServiceEndpoint, "unix:///run/a.sock", "unix:///run/b.sock")
	}
	if k := parse(
		t,
		PLEG,
		"--container-runtime-endpoint",
		"/run/c.sock",
	).Kubelet; k.ContainerRuntimeEndpoint != "unix:///run/c.sock" {
		t.Errorf("the flag gives %s, want %q", k.ContainerRuntimeEndpoint, "unix:///run/c.sock")
	}
}

// TestPathsOfTheFlagsWin: flags override the paths of the file, because a container mounts the machine's directories
// elsewhere.
func TestPathsOfTheFlagsWin(t *testing.T) {
	if got := parse(t, ConfigMux, "--pod-manifest-path", "/m").Kubelet.StaticPodPath; got != "/m" {
		t.Errorf("manifests are read from %q, want %q", got, "/m")
	}
	if got := parse(t, SyncLoop, "--pod-logs-dir", "/l").Kubelet.PodLogsDir; got != "/l" {
		t.Errorf("logs are in %q, want %q", got, "/l")
	}
	for flag, service := range map[string]Service{"--pod-manifest-path": ConfigMux, "--pod-logs-dir": SyncLoop} {
		if _, err := Parse(
			service,
			[]string{flag, "logs/"},
			io.Discard,
		); err == nil ||
			!strings.Contains(err.Error(), flag+": ") {
			t.Errorf("%s with a relative path: %v", flag, err)
		}
	}
}

func TestAFlagOfOneServiceIsOnlyIts(t *testing.T) {
	if cfg := parse(t, ConfigMux, "--standby"); !cfg.Standby {
		t.Error("configmux is not told to stand by")
	}
	if cfg := parse(
		t,
		ConfigMux,
		"--replay",
		"/r.jsonl",
		"--replay-speed",
		"0",
	); cfg.Replay != "/r.jsonl" ||
		cfg.ReplaySpeed != 0 {
		t.Errorf("configmux replays %q at %v, want %q and 0", cfg.Replay, cfg.ReplaySpeed, "/r.jsonl")
	}
	if cfg := parse(t, ConfigMux, "--replay", "/r.jsonl"); cfg.ReplaySpeed != 1 {
		t.Errorf("configmux replays at %v, want 1", cfg.ReplaySpeed)
	}
	if cfg := parse(t, PLEG, "--read-only", "--listen", "unix:///s/second.sock"); !cfg.ReadOnly {
		t.Error("pleg is not told to only read")
	}
	if cfg := parse(t, SyncLoop, "--host-root", "/host/"); cfg.HostRoot != "/host" {
		t.Errorf("syncloop sees the machine's root at %q, want %q", cfg.HostRoot, "/host")
	}
	if cfg := parse(t, SyncLoop); cfg.HostRoot != "/" {
		t.Errorf("syncloop sees the machine's root at %q, want %q", cfg.HostRoot, "/")
	}
	for flag, owner := range map[string]Service{"--standby": ConfigMux, "--replay=/r": ConfigMux, "--read-only": PLEG, "--host-root=/host": SyncLoop} {
		for _, service := range Services() {
			_, err := Parse(service, []string{flag, "--listen", "unix:///s/own.sock"}, os.Stderr)
			if (err == nil) != (service == owner) {
				t.Errorf("%s %s: Parse() error = %v, want success: %t", service, flag, err, service == owner)
			}
		}
	}
}

func TestAddressesThatCannotWorkAreRefusedWithWhatToDo(t *testing.T) {
	for _, tc := range []struct {
		service    Service
		args, want string
	}{
		{PLEG, "--metrics-listen=0.0.0.0:9101", `--metrics-listen: "0.0.0.0:9101": the host must be a loopback address`},
		{PLEG, "--metrics-listen=localhost:9101", "must be a loopback address such as 127.0.0.1"},
		{PLEG, "--metrics-listen=127.0.0.1", "or none"},
		{PLEG, "--metrics-listen=127.0.0.1:0", "from 1 to 65535"},
		{PLEG, "--metrics-listen=unix://relative", "must be unix:// and an absolute path"},
		{PLEG, "--metrics-listen=unix:///run/quartet/pleg/pleg.sock", "is the address of --listen"},
		{PLEG, "--metrics-listen=", "or none"},
		{PLEG, "--listen=unix:///" + strings.Repeat("d", 95) + ".sock", "--metrics-listen: "},
		{PLEG, "--allowed-uids=quartet", `--allowed-uids: "quartet" must be the number of a user`},
		{PLEG, "--allowed-uids=-1", "from 0 to 4294967294"},
		{PLEG, "--allowed-uids=4294967295", "from 0 to 4294967294"},
		{PLEG, "--container-runtime-endpoint=run/containerd/containerd.sock", "--container-runtime-endpoint: "},
		{PLEG, "--read-only", "--read-only: needs an address of its own, for the node's pleg serves on unix:///run/quartet/pleg/pleg.sock: add --listen"},
		{PLEG, "--read-only --listen=unix:///run/quartet/pleg/pleg.sock", "--read-only: needs an address of its own"},
		{ConfigMux, "--replay=r.jsonl", `--replay: "r.jsonl" must be an absolute path`},
		{ConfigMux, "--replay=", `--replay: "" must be an absolute path`},
		{ConfigMux, "--replay-speed=2", "--replay-speed: there is nothing to replay: name the recording with --replay"},
		{ConfigMux, "--replay=/r --replay-speed=-1", "--replay-speed: -1: must be a number of 0 or more"},
		{ConfigMux, "--replay=/r --replay-speed=NaN", "--replay-speed: NaN: must be a number of 0 or more"},
		{ConfigMux, "--replay=/r --replay-speed=inf", "--replay-speed: +Inf: must be a number of 0 or more"},
		{SyncLoop, "--host-root=host", `--host-root: "host" must be an absolute path`},
	} {
		_, err := Parse(tc.service, strings.Fields(tc.args), os.Stderr)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %s: got %v, want %q in it", tc.service, tc.args, err, tc.want)
		}
	}
}
