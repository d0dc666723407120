package bundle

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
)

func layoutAt(t *testing.T, dir string) layout.Layout {
	t.Helper()
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Every path in containerd's configuration is in the node's own directories, including those with a default elsewhere.
func TestConfigurationNamesNothingOfTheMachine(t *testing.T) {
	text, err := runtimeConfig{
		Root: "/s/root", State: "/s/state", Socket: "/s/run/c.sock", ShimSockets: "/s/run/s", BinDir: "/s/bin",
		NetworkDir: "/s/cni", Opt: "/s/opt", RuncRoot: "/s/runc", SandboxImage: PauseImage, Snapshotter: "overlayfs",
		RestrictOOMScore: true, LimitHugePages: true,
	}.render()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		_, value, found := strings.Cut(line, " = ")
		value = strings.Trim(strings.TrimSpace(value), `[]"`)
		if found && strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "/s/") {
			t.Errorf("a path outside the state directory: %s", line)
		}
	}
	for _, want := range []string{
		"version = 3\n", "imports = []\n", `address = "/s/run/c.sock"`, `socket_dir = "/s/run/s"`, `conf_dir = "/s/cni"`,
		`bin_dirs = ["/s/bin"]`, `sandbox = "quartet.local/pause:1"`, "restrict_oom_score_adj = true",
		"disable_hugetlb_controller = false", "stats_collect_period = '10s'\n",
		`runtime_path = "/s/bin/containerd-shim-runc-v2"`, `BinaryName = "/s/bin/runc"`, `Root = "/s/runc"`,
		"[plugins.'io.containerd.nri.v1.nri']\n  disable = true",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, text)
		}
	}
}

func TestHugePagesAreLimitedWhereCgroupsCountThem(t *testing.T) {
	for text, want := range map[string]bool{"cpuset cpu io memory hugetlb pids\n": true, "cpuset cpu\n": false, "": false} {
		if got := countsHugePages(fstest.MapFS{"cgroup.controllers": {Data: []byte(text)}}); got != want {
			t.Errorf("with the controllers %q: %v", text, got)
		}
	}
	if countsHugePages(fstest.MapFS{"hugetlb/tasks": {}}) {
		t.Error("the controller of version 1 counts")
	}
}

func TestConfigurationQuotesPaths(t *testing.T) {
	text, err := runtimeConfig{Root: `/a "b" \c<d>`}.render()
	if err != nil {
		t.Fatal(err)
	}
	if want := `root = "/a \"b\" \\c<d>"`; !strings.Contains(text, want) {
		t.Errorf("got\n%s\nwant a line %s", text, want)
	}
}

type conflist struct {
	Name    string
	Plugins []struct {
		Type, Bridge, IPMasqBackend, Backend string
		IPMasq                               bool
		Capabilities                         map[string]bool
		IPAM                                 struct {
			DataDir string
			Ranges  [][]struct{ Subnet string }
		}
	}
}

func render(t *testing.T, n networkConfig) conflist {
	t.Helper()
	text, err := n.render()
	if err != nil {
		t.Fatal(err)
	}
	var out conflist
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestNetworkWithAPacketFilterMasquerades(t *testing.T) {
	got := render(t, networkConfig{
		Name: "n", Bridge: "quartet0", Subnet: netip.MustParsePrefix("10.88.2.0/23"), IPAMDir: "/s/ipam", Backend: "nftables",
	})
	bridge, portmap := got.Plugins[0], got.Plugins[1]
	if !bridge.IPMasq || bridge.IPMasqBackend != "nftables" || portmap.Backend != "nftables" {
		t.Errorf("masquerading is not by nftables: %+v", got)
	}
	if bridge.IPAM.Ranges[0][0].Subnet != "10.88.2.0/23" || bridge.IPAM.DataDir != "/s/ipam" {
		t.Errorf("addresses are %+v, want Ranges[0][0].Subnet %q and DataDir %q", bridge.IPAM, "10.88.2.0/23", "/s/ipam")
	}
	if !portmap.Capabilities["portMappings"] {
		t.Error("host ports are not mapped")
	}
}

func TestNetworkWithoutAPacketFilterStillConnects(t *testing.T) {
	got := render(t, networkConfig{Name: "n", Bridge: "quartet0", Subnet: netip.MustParsePrefix("10.88.0.0/23")})
	if got.Plugins[0].IPMasq {
		t.Error("masquerading is asked for, and nothing can do it")
	}
}

func TestBridgeNamesFit(t *testing.T) {
	for _, dir := range []string{"", "/a", "/" + strings.Repeat("x", 200)} {
		if name := bridgeName(layoutAt(t, dir)); len(name) > 15 {
			t.Errorf("%s has %d bytes, the kernel allows 15", name, len(name))
		}
	}
}

// write writes a file with its directories below a root.
func write(t *testing.T, root, path, content string) {
	t.Helper()
	full := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPreflightNamesMissingBinaries(t *testing.T) {
	dir := t.TempDir()
	if f := checkBinaries(dir); f.Level != machine.Fault || !strings.Contains(f.Detail, "runc") ||
		!strings.Contains(f.Fix, "make build") {
		t.Errorf("checkBinaries() = %+v, want Level %v, Detail with %q and Fix with %q",
			f, machine.Fault, "runc", "make build")
	}
	for _, name := range binaries() {
		write(t, dir, name, "")
	}
	if f := checkBinaries(dir); f.Level != machine.OK {
		t.Errorf("checkBinaries() = %+v, want Level %v", f, machine.OK)
	}
}

// TestInstallReplacesOnlyWhatHasChanged on one file system, and across two.
func TestInstallReplacesOnlyWhatHasChanged(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "quartet-install-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(other); err != nil {
			t.Error(err)
		}
	})
	for name, dir := range map[string]string{"by a link": t.TempDir(), "by a copy": other} {
		t.Run(name, func(t *testing.T) {
			testInstall(t, filepath.Join(t.TempDir(), "a"), filepath.Join(dir, "a"))
		})
	}
}

func testInstall(t *testing.T, from, to string) {
	t.Helper()
	var before os.FileInfo
	for _, content := range []string{"one", "another"} {
		if err := os.RemoveAll(from); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(from, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
		for again := range 2 {
			if err := install(from, to); err != nil {
				t.Fatal(err)
			}
			after, err := os.Stat(to)
			if err != nil {
				t.Fatal(err)
			}
			if kept := before != nil && os.SameFile(before, after); kept != (again == 1) {
				t.Errorf("with the content %q, time %d: the file is kept: %v", content, again+1, kept)
			}
			before = after
		}
		if got, err := os.ReadFile(to); err != nil || string(got) != content {
			t.Errorf("got %q (%v), want %q", got, err, content)
		}
	}
}
