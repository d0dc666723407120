package nodeconfig

import (
	"bytes"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}

// TestBadFilesAreRefusedWithEveryError compares all errors of each file in testdata/bad with the expected text beside
// it.
func TestBadFilesAreRefusedWithEveryError(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, errs := Decode("/etc/node.yaml", data)
			if len(errs) == 0 {
				t.Fatal("Decode() accepted an invalid configuration, want errors")
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", Errors(errs).Error()+"\n")
		})
	}
}

func parse(t *testing.T, service Service, args ...string) Config {
	t.Helper()
	cfg, err := Parse(service, append([]string{"--hostname-override", "node-1"}, args...), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestDefaults(t *testing.T) {
	cfg := parse(t, PLEG)
	k := cfg.Kubelet
	got := map[string]any{
		"listen":     cfg.Listen,
		"state":      cfg.StateDir,
		"root":       cfg.RootDir,
		"name":       cfg.NodeName,
		"nodestatus": cfg.Peers.NodeStatus,
		"file":       k.FileCheckFrequency.Duration,
		"http":       k.HTTPCheckFrequency.Duration,
		"sync":       k.SyncFrequency.Duration,
		"update":     k.NodeStatusUpdateFrequency.Duration,
		"report":     k.NodeStatusReportFrequency.Duration,
		"lease":      k.NodeLeaseDurationSeconds,
		"request":    k.RuntimeRequestTimeout.Duration,
		"runtime":    k.ContainerRuntimeEndpoint,
		"images":     k.ImageServiceEndpoint,
		"logs":       k.PodLogsDir,
		"serial":     *k.SerializeImagePulls,
		"pods":       k.MaxPods,
		"cgroups":    k.CgroupDriver,
		"resolv":     *k.ResolverConfig,
		"port":       k.ReadOnlyPort,
		"address":    k.Address,
		"evict":      k.EvictionHard["memory.available"],
		"restart":    k.CrashLoopBackOff.MaxContainerRestartPeriod.Duration,
		"kubeconfig": cfg.Kubeconfig,
		"qps":        *k.KubeAPIQPS,
		"burst":      k.KubeAPIBurst,
		"content":    k.ContentType,
		"register":   *k.RegisterNode,
	}
	want := map[string]any{
		"listen":     "unix:///run/quartet/pleg/pleg.sock",
		"state":      "/var/lib/quartet",
		"root":       "/var/lib/quartet/root",
		"name":       "node-1",
		"nodestatus": "unix:///run/quartet/nodestatus/nodestatus.sock",
		"file":       20 * time.Second,
		"http":       20 * time.Second,
		"sync":       time.Minute,
		"update":     10 * time.Second,
		"report":     5 * time.Minute,
		"lease":      int32(40),
		"request":    2 * time.Minute,
		"runtime":    "unix:///run/containerd/containerd.sock",
		"images":     "unix:///run/containerd/containerd.sock",
		"logs":       "/var/log/pods",
		"serial":     true,
		"pods":       int32(110),
		"cgroups":    "cgroupfs",
		"resolv":     "/etc/resolv.conf",
		"port":       int32(0),
		"address":    "127.0.0.1",
		"evict":      "100Mi",
		"restart":    5 * time.Minute,
		"kubeconfig": "",
		"qps":        int32(50),
		"burst":      int32(100),
		"content":    "application/vnd.kubernetes.protobuf",
		"register":   true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults differ (-want +got):\n%s", diff)
	}
}

// TestTheFlagsAreShown checks that all flags are logged, set or not.
func TestTheFlagsAreShown(t *testing.T) {
	flags := parse(t, SyncLoop, "--v", "3").Flags
	for name, want := range map[string]string{"v": "3", "hostname-override": "node-1", "state-dir": "/var/lib/quartet", "node-ip": ""} {
		if got, found := flags[name]; got != want || !found {
			t.Errorf("--%s: got %q, want %q", name, got, want)
		}
	}
}

func TestFileOverridesDefaults(t *testing.T) {
	k := parse(t, SyncLoop, "--config", "testdata/good/full.json").Kubelet
	got := map[string]any{
		"port":    k.ReadOnlyPort,
		"address": k.Address,
		"pods":    k.MaxPods,
		"serial":  *k.SerializeImagePulls,
		"check":   k.FileCheckFrequency.Duration,
		"memory":  k.EvictionHard["memory.available"],
		"inodes":  k.EvictionHard["nodefs.inodesFree"],
	}
	want := map[string]any{"port": int32(0), "address": "0.0.0.0", "pods": int32(50), "serial": false,
		"check": time.Second, "memory": "5%", "inodes": "5%"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTheReadOnlyAPIIsOffUnlessTheFileNamesItsPort, as the kubelet's, because it has no authentication.
func TestTheReadOnlyAPIIsOffUnlessTheFileNamesItsPort(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	for rest, want := range map[string]int32{"": 0, "address: 127.0.0.1": 0, "readOnlyPort: 0": 0, "readOnlyPort: 10255": 10255, "address: 0.0.0.0\nreadOnlyPort: 10255": 10255} {
		if err := os.WriteFile(
			file,
			[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+rest),
			0o600,
		); err != nil {
			t.Fatal(err)
		}
		if got := parse(t, SyncLoop, "--config", file).Kubelet.ReadOnlyPort; got != want {
			t.Errorf("%q: readOnlyPort is %d, want %d", rest, got, want)
		}
	}
}

func TestRelativePathsAreRelativeToTheFile(t *testing.T) {
	cfg := parse(t, ConfigMux, "--config", "testdata/good/minimal.yaml")
	want, err := filepath.Abs("testdata/good/manifests")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Kubelet.StaticPodPath != want {
		t.Errorf("staticPodPath = %s, want %s", cfg.Kubelet.StaticPodPath, want)
	}
}

// TestAFileOfKubeadmsNamesNothingThatIsUnsupported: the node logs no unsupported field at its start.
func TestAFileOfKubeadmsNamesNothingThatIsUnsupported(t *testing.T) {
	for _, service := range Services() {
		if cfg := parse(t, service, "--config", "testdata/good/kubeadm.yaml"); len(cfg.Unsupported) > 0 {
			t.Errorf("%s names %v, want none", service, cfg.Unsupported)
		}
	}
}

func TestEveryUnsupportedFieldIsNamedByOneService(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	const text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nvolumePluginDir: /x\nmemorySwap: {}\nhealthzPort: 0\nallowedUnsafeSysctls: []\nenableProfilingHandler: true\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, service := range Services() {
		var want []string
		if service == SyncLoop {
			want = []string{file + ":3: volumePluginDir"}
		}
		if got := parse(t, service, "--config", file).Unsupported; !slices.Equal(got, want) {
			t.Errorf("%s names %q, want %q", service, got, want)
		}
	}
}

func TestThePodsOfAServerAreSupported(t *testing.T) {
	for _, service := range Services() {
		cfg := parse(t, service, "--config", "testdata/good/http.yaml")
		if len(cfg.Unsupported) > 0 {
			t.Errorf("%s names %v, want nothing", service, cfg.Unsupported)
		}
		k := cfg.Kubelet
		if k.StaticPodURL != "https://node:secret@127.0.0.1/pods?of=node-1" ||
			k.HTTPCheckFrequency.Duration != 5*time.Second ||
			!slices.Equal(k.StaticPodURLHeader["X-Token"], []string{"a", "b"}) {
			t.Errorf("%s has %q, %v and %s, want %q, %s and X-Token %v",
				service, k.StaticPodURL, k.StaticPodURLHeader, k.HTTPCheckFrequency.Duration,
				"https://node:secret@127.0.0.1/pods?of=node-1", 5*time.Second, []string{"a", "b"})
		}
	}
}

// An error for a wrong URL or header has its line, without parts that may be secret.
func TestAWrongURLOfPodsIsSaidWithoutItsSecrets(t *testing.T) {
	for value, want := range map[string]string{
		"staticPodURL: ftp://u:hunter2@host/pods":              ":3: staticPodURL: must be",
		"staticPodURL: http:///hunter2":                        ":3: staticPodURL: must be",
		"staticPodURL: /hunter2":                               ":3: staticPodURL: must be",
		"staticPodURL: http://u:hunter2/@host":                 ":3: staticPodURL: must be",
		"staticPodURL: 'http://u:hunter2 @host'":               ":3: staticPodURL: must be",
		"staticPodURLHeader: {'a b': [hunter2]}":               ":3: staticPodURLHeader.a b: is no name",
		"staticPodURLHeader: {'': [hunter2]}":                  ":3: staticPodURLHeader: is no name",
		"staticPodURLHeader: {ok: [fine, \"hunter2\\nX: y\"]}": ":3: staticPodURLHeader.ok[1]: has a character",
		"staticPodURLHeader: {ok: hunter2}":                    ":3: staticPodURLHeader",
		"configMapAndSecretChangeDetectionStrategy: Sometimes": `:3: configMapAndSecretChangeDetectionStrategy: is "Sometimes", must be Watch, Cache or Get`,
		"httpCheckFrequency: -1s":                              ":3: httpCheckFrequency: is -1s, must be more than 0",
	} {
		_, errs := Decode(
			"/etc/node.yaml",
			[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+value+"\n"),
		)
		if len(errs) != 1 {
			t.Errorf("%s: errors %v, want one", value, errs)
			continue
		}
		if got := errs[0].Error(); !strings.HasPrefix(got, "/etc/node.yaml"+want) || strings.Contains(got, "hunter2") {
			t.Errorf("%s: says %q, want it to begin with %q and no secret in it", value, got, want)
		}
	}
}

func TestLogUnsupportedIsOneWarning(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	Config{}.LogUnsupported(logger)
	if out.Len() > 0 {
		t.Errorf("said %q with nothing to say", out.String())
	}
	Config{Unsupported: []string{"f:1: a", "f:2: b"}}.LogUnsupported(logger)
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "f:1: a, f:2: b") {
		t.Errorf("said %q, want %q once and with %q", got, "\n", "f:1: a, f:2: b")
	}
}

func TestEveryErrorOfFlagsAndFileAtOnce(t *testing.T) {
	_, err := Parse(PLEG, []string{
		"--config",
		"testdata/bad/unknown-fields.yaml",
		"--node-ip",
		"nowhere",
		"--hostname-override",
		"A_b",
		"--listen",
		"localhost:80",
		"--pleg-address",
		"unix://relative",
		"--node-labels",
		"a=b,=c,a=d,kubernetes.io/x=y,x/y=z z",
		"--v",
		"-1",
		"more",
	}, os.Stderr)
	var all Errors
	if !errors.As(err, &all) {
		t.Fatalf("got %v, want Errors", err)
	}
	text := err.Error()
	for _, want := range []string{
		`"more": unexpected argument`, `--node-ip: "nowhere"`, `"a_b" cannot name a node`,
		`--listen: "localhost:80"`, `--pleg-address: "unix://relative"`, `"=c"`, `"a=d": the key is given twice`, `"kubernetes.io/x=y": labels of`,
		`"x/y=z z"`, "--v: -1", "unknown-fields.yaml:3: maxPod:", "did you mean maxPods?", ":7: frobnicate",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the error does not say %q:\n%s", want, text)
		}
	}
}

func TestUnreadableFileNamesTheFlag(t *testing.T) {
	_, err := Parse(PLEG, []string{"--config", "testdata/none.yaml"}, os.Stderr)
	if err == nil || !strings.Contains(err.Error(), "--config: open testdata/none.yaml") {
		t.Errorf("Parse() error = %v, want an error with %q", err, "--config: open testdata/none.yaml")
	}
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v is not an os.ErrNotExist", err)
	}
}

func TestUnknownFlagPointsToTheHelp(t *testing.T) {
	_, err := Parse(PLEG, []string{"--frob"}, os.Stderr)
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --frob (pleg --help lists the flags)") {
		t.Errorf("Parse() error = %v, want an error with %q", err, "unknown flag: --frob (pleg --help lists the flags)")
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	for _, service := range Services() {
		t.Run(string(service), func(t *testing.T) {
			var out bytes.Buffer
			if _, err := Parse(service, []string{"--help"}, &out); !errors.Is(err, pflag.ErrHelp) {
				t.Fatalf("got %v, want ErrHelp", err)
			}
			for _, want := range []string{string(service) + " [flags]", "--config FILE", "--listen ADDRESS", "--configmux-address", "--pleg-address",
				"--syncloop-address", "--nodestatus-address", "--state-dir DIR", "--root-dir DIR", "--hostname-override NAME", "--node-ip IP",
				"--node-labels LABELS", "-v, --v N", "OTEL_EXPORTER_OTLP_ENDPOINT", "--metrics-listen ADDRESS", "--allowed-uids USERS",
				"--container-runtime-endpoint ADDRESS", string(service) + " health [flags]"} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the help does not say %q:\n%s", want, out.String())
				}
			}
		})
	}
}

func TestLongSocketPathIsRefused(t *testing.T) {
	_, err := Parse(PLEG, []string{"--listen", "unix:///" + strings.Repeat("a", 120)}, os.Stderr)
	if err == nil || !strings.Contains(err.Error(), "use a shorter directory") {
		t.Errorf("Parse() error = %v, want an error with %q", err, "use a shorter directory")
	}
}

func TestParseThreshold(t *testing.T) {
	for text, want := range map[string]int64{"100Mi": 100 << 20, "10%": 100, "0%": 0, "100%": 0, "1": 1} {
		threshold, err := ParseThreshold(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got := threshold.Of(1000); got != want {
			t.Errorf("%s of 1000 = %d, want %d", text, got, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "101%", "-1%", "NaN%", "%"} {
		if threshold, err := ParseThreshold(text); err == nil {
			t.Errorf("%q is read as %+v", text, threshold)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"testdata/good/*", "testdata/bad/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		decoded, errs := Decode("/etc/node.yaml", data)
		if len(errs) > 0 {
			for _, err := range errs {
				var located *FieldError
				if !errors.As(err, &located) || located.Problem == "" {
					t.Errorf("an error says nothing: %#v", err)
				}
			}
			return
		}
		// The services rely on these fields.
		k := decoded.Kubelet
		if k.SyncFrequency.Duration <= 0 || k.MaxPods <= 0 || k.CPUCFSQuotaPeriod == nil || k.ResolverConfig == nil {
			t.Errorf("accepted without what others rely on: %+v", k)
		}
		if k.StaticPodPath != "" && !filepath.IsAbs(k.StaticPodPath) {
			t.Errorf("staticPodPath %q is not absolute", k.StaticPodPath)
		}
	})
}
