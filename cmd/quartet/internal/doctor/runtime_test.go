package doctor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// withRuntime examines a node whose configuration names a runtime.
func withRuntime(t *testing.T, endpoint, more string) *patient {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	write(
		t,
		file,
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: "+endpoint+"\n"+more,
		0o644,
	)
	return examine(t, harness.ShortDir(t), func(o *options, _ *environment) { o.configFile = file })
}

func TestARuntimeThatIsWell(t *testing.T) {
	runtime := fakecri.New(t)
	findings := withRuntime(t, runtime.Endpoint(), "").checkRuntime(t.Context())
	expect(t, find(t, findings, "runtime")[0], machine.OK, "fakecri v1.0.0", "CRI v1", runtime.Endpoint())
	for _, name := range []string{"RuntimeReady", "NetworkReady", "cgroup driver"} {
		expect(t, find(t, findings, name)[0], machine.OK)
	}
}

func TestARuntimeThatIsNotReadySaysWhy(t *testing.T) {
	runtime := fakecri.New(t)
	runtime.SetConditions(false, false)
	p := withRuntime(t, runtime.Endpoint(), "cgroupDriver: systemd\n")
	findings := p.checkRuntime(t.Context())
	expect(t, find(t, findings, "runtime")[0], machine.OK)
	expect(t, find(t, findings, "RuntimeReady")[0], machine.Fault, "log of the runtime")
	expect(t, find(t, findings, "NetworkReady")[0], machine.Fault, "CNI lines below")
	expect(
		t,
		find(t, findings, "cgroup driver")[0],
		machine.OK,
		"cgroupfs, the runtime's; systemd in the configuration does not count",
	)
	expect(
		t,
		condition("RuntimeReady", runtimeapi.RuntimeReady, &runtimeapi.StatusResponse{}, "look"),
		machine.Fault,
		"no such condition",
	)
}

func TestARuntimeThatIsNotThere(t *testing.T) {
	dir := harness.ShortDir(t)
	check := func(path string) []machine.Finding {
		return withRuntime(t, "unix://"+path, "").checkRuntime(t.Context())
	}
	one := func(findings []machine.Finding) machine.Finding {
		t.Helper()
		if len(findings) != 1 {
			t.Fatalf("got %+v, want one finding", findings)
		}
		return findings[0]
	}
	expect(t, one(check(dir+"/none.sock")), machine.Fault, dir+"/none.sock", "is not there", "systemctl start containerd")
	write(t, dir+"/file", "", 0o600)
	expect(t, one(check(dir+"/file")), machine.Fault, "not a socket", "containerRuntimeEndpoint")

	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/left.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, one(check(dir+"/left.sock")), machine.Fault, "nobody listens", "systemctl start containerd")
}

// A runtime that accepts connections and never answers, like a suspended one.
func TestARuntimeThatHangs(t *testing.T) {
	path := harness.ShortDir(t) + "/hangs.sock"
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	p := withRuntime(t, "unix://"+path, "")
	var found []machine.Finding
	err = runner{
		timeout: checkTimeout / 10,
		atOnce:  1,
	}.run(
		t.Context(),
		[]check{{name: "runtime", run: p.checkRuntime}},
		func(findings []machine.Finding) error {
			found = findings
			return nil
		},
	)
	if err != nil || len(found) != 1 {
		t.Fatalf("found = %+v (%v), want exactly one", found, err)
	}
	expect(t, found[0], machine.Fault, fmt.Sprintf("pid %d", os.Getpid()), "does not answer", "restart it")
}

// containerd without its CRI plugin answers that the service is unknown.
func TestARuntimeWithoutCRI(t *testing.T) {
	listener, err := net.Listen("unix", harness.ShortDir(t)+"/containerd.sock")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	findings := withRuntime(t, "unix://"+listener.Addr().String(), "").checkRuntime(t.Context())
	expect(t, findings[0], machine.Fault, "does not serve CRI v1", "disabled_plugins")
}

// The node's own runtime: without a node, quartet up starts it; with a running node, it is missing.
func TestTheBundledRuntime(t *testing.T) {
	dir := harness.ShortDir(t)
	expect(t, examine(t, dir, nil).checkRuntime(t.Context())[0], machine.OK, "quartet up", "--config")
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	write(
		t,
		l.ConfigFile(),
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: "+l.RuntimeEndpoint()+"\n",
		0o644,
	)
	expect(
		t,
		examine(t, dir, nil).checkRuntime(t.Context())[0],
		machine.OK,
		"not running; quartet up --detach --state-dir "+dir+" starts it",
	)
	write(t, l.PIDFile("pleg"), "1\n", 0o644)
	expect(
		t,
		examine(t, dir, nil).checkRuntime(t.Context())[0],
		machine.Fault,
		l.RuntimeEndpoint(),
		"quartet up --detach --state-dir "+dir,
	)
}

func TestNetworkOfContainerd(t *testing.T) {
	for config, want := range map[string]string{
		"":         "/etc/cni/net.d /opt/cni/bin",
		"not JSON": "/etc/cni/net.d /opt/cni/bin",
		`{"cni":{"binDirs":["/a","/b"],"confDir":"/c"}}`: "/c /a /b",
		`{"cni":{"binDir":"/a","confDir":"/c"}}`:         "/c /a",
	} {
		facts := readNetwork(config)
		if got := strings.Join(append([]string{facts.configDir}, facts.binDirs...), " "); got != want {
			t.Errorf("%s: got %s, want %s", config, got, want)
		}
	}
}

func TestCNI(t *testing.T) {
	const list = `{"name": "n", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}`
	network := func(config map[string]string, plugins ...string) []machine.Finding {
		dir := t.TempDir()
		for name, content := range config {
			write(t, filepath.Join(dir, "conf", name), content, 0o644)
		}
		for _, plugin := range plugins {
			write(t, filepath.Join(dir, "bin2", plugin), "", 0o755)
		}
		return judgeNetwork(
			networkFacts{
				configDir: filepath.Join(dir, "conf"),
				binDirs:   []string{filepath.Join(dir, "bin1"), filepath.Join(dir, "bin2")},
			},
			"",
		)
	}
	well := network(
		map[string]string{"10-a.conflist": list, "99-b.conf": `{"type": "nonsense"}`},
		"bridge",
		"host-local",
		"portmap",
	)
	expect(t, find(t, well, "CNI configuration")[0], machine.OK, "10-a.conflist", "bridge, host-local, portmap")
	expect(t, find(t, well, "CNI plugins")[0], machine.OK, "bin1", "bin2")

	missing := network(map[string]string{"10-a.conflist": list}, "bridge")
	expect(t, find(t, missing, "CNI plugins")[0], machine.Fault, "host-local, portmap", "containernetworking")
	single := network(map[string]string{"a.conf": `{"type": "macvlan"}`}, "bridge")
	expect(t, find(t, single, "CNI plugins")[0], machine.Fault, "macvlan")
	expect(t, network(nil)[0], machine.Fault, "there is none", "*.conflist")
	expect(
		t,
		judgeNetwork(networkFacts{configDir: t.TempDir()}, "quartet up")[0],
		machine.Fault,
		"there is none",
		"quartet up",
	)
	expect(t, network(map[string]string{"a.conflist": "{"})[0], machine.Fault, "a.conflist")
	expect(t, network(map[string]string{"a.conflist": "{}"})[0], machine.Fault, "names no plugin")
}

// A read-only port in use is fine when syncloop itself listens there.
func TestTheReadOnlyPortIsSyncloops(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	p := examine(t, harness.ShortDir(t), nil)
	p.kubelet.ReadOnlyPort = int32(listener.Addr().(*net.TCPAddr).Port)
	expect(t, p.readOnlyPort().run(t.Context())[0], machine.Fault, "the read-only API of syncloop", "--read-only-port")
	*p.kubelet.HealthzPort = p.kubelet.ReadOnlyPort
	expect(t, p.healthzPort().run(t.Context())[0], machine.Warning, "the health of the node", "--healthz-port")

	// This process, which listens on the port, now serves syncloop's socket, too.
	syncloop, err := rpc.ListenUnix(p.layout.Address(layout.SyncLoop), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syncloop.Close(); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	})
	expect(t, p.readOnlyPort().run(t.Context())[0], machine.OK, "the read-only API of syncloop")
	expect(t, p.healthzPort().run(t.Context())[0], machine.Warning, "the health of the node", "--healthz-port")

	// Now it runs the node, which keeps the ports of processes that are down.
	held, err := statedir.Lock(p.layout.StateDir(), nodecmd.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	})
	expect(t, p.healthzPort().run(t.Context())[0], machine.OK, "the health of the node")
}
