package executor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/userns"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestWhatAContainerIsGiven inspects the processes of pods on a real runtime from outside.
func TestWhatAContainerIsGiven(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	n := newRealNode(t)
	t.Run("user namespace", func(t *testing.T) { givenAUserNamespace(t, n.in(t)) })
	t.Run("what its spec says", func(t *testing.T) { givenItsSpec(t, n.in(t)) })
	t.Run("namespaces of others", func(t *testing.T) { givenNamespacesOfOthers(t, n.in(t)) })
	t.Run("volumes", func(t *testing.T) { givenVolumes(t, n.in(t)) })
	t.Run("hooks", func(t *testing.T) { givenHooks(t, n.in(t)) })
	t.Run("stop signal", func(t *testing.T) { givenAStopSignal(t, n.in(t)) })
	t.Run("all again", func(t *testing.T) { givenAllAgain(t, n.in(t)) })
	t.Run("runtime handler", func(t *testing.T) { givenARuntimeHandler(t, n.in(t)) })
}

// in returns the node for a subtest.
func (n *node) in(t *testing.T) *node {
	one := *n
	one.t = t
	return &one
}

// run starts a pod, and stops and removes it at the end of the test.
func (n *node) run(pod *v1.Pod) {
	n.t.Helper()
	n.t.Cleanup(func() {
		if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
			n.t.Error(err)
		}
		if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
			n.t.Error(err)
		}
	})
	n.sync(pod)
}

// proc returns the folder in /proc of the first process of the newest container of a name.
func (n *node) proc(pod *v1.Pod, name string) string {
	n.t.Helper()
	response, err := n.runtime.ContainerStatus(n.ctx, n.id(pod, name), true)
	if err != nil {
		n.t.Fatal(err)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(response.GetInfo()["info"]), &info); err != nil || info.Pid == 0 {
		n.t.Fatalf("the runtime says of %s: %v, error %v", name, response.GetInfo(), err)
	}
	proc := filepath.Join("/proc", fmt.Sprint(info.Pid))
	eventually.That(n.t, name+" is not the runtime's own program any more", func() bool {
		program, err := os.ReadFile(filepath.Join(proc, "comm"))
		return err == nil && !strings.HasPrefix(string(program), "runc")
	})
	return proc
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func givenAUserNamespace(t *testing.T, n *node) {
	n.config.UserIDs = userns.New(userns.Config{
		PodsDir: filepath.Join(n.config.RootDir, "pods"), Subordinate: func(perPod uint32) (userns.Range, error) {
			return userns.Subordinate(userns.Local{}, perPod)
		},
	}).Of
	n.manager = executor.New(n.config)
	seen := map[string]bool{}
	for i := range 2 {
		pod := helloPod(fmt.Sprint("mapped-", i), nil, "sleep")
		pod.Spec.HostUsers = new(false)
		pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		n.run(pod)
		users := read(t, filepath.Join(n.proc(pod, "c0-sleep"), "uid_map"))
		ids, err := n.config.UserIDs(pod.UID)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(strings.Fields(users), " "), fmt.Sprintf("0 %d %d", ids.First, ids.Length); got != want || seen[got] {
			t.Errorf("the users of the container are %s, want %s, which no other pod has", got, want)
		}
		seen[users] = true
		// Root in the container owns the files that root on the node has created for it.
		var data unix.Stat_t
		if err := unix.Stat(filepath.Join(n.proc(pod, "c0-sleep"), "root/data"), &data); err != nil || data.Uid != ids.First {
			t.Errorf("the volume is of user %d, error %v; want %d", data.Uid, err, ids.First)
		}

		// Another process restarts a container in the same namespace.
		n.manager = executor.New(n.config)
		if n.sync(pod).Wrote {
			t.Error("a new process changes a pod that needs no change")
		}
		if err := n.runtime.StopContainer(n.ctx, n.id(pod, "c0-sleep"), 2); err != nil {
			t.Fatal(err)
		}
		n.sync(pod)
		if got := read(t, filepath.Join(n.proc(pod, "c0-sleep"), "uid_map")); got != users {
			t.Errorf("after its restart the users of the container are %s, want %s", got, users)
		}
	}
}

func givenARuntimeHandler(t *testing.T, n *node) {
	pod := helloPod("handled", nil, "sleep")
	pod.Spec.RuntimeClassName = new("runc")
	n.run(pod)
	response, err := n.runtime.PodSandboxStatus(n.ctx, n.observe(pod).Sandboxes[0].Id, false)
	if err != nil || response.GetStatus().GetRuntimeHandler() != "runc" {
		t.Errorf("the sandbox has the handler %q, error %v, want %q", response.GetStatus().GetRuntimeHandler(), err, "runc")
	}
	pod = helloPod("unhandled", nil, "sleep")
	pod.Spec.RuntimeClassName = new("kata")
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if !errors.As(result.SandboxError, new(*executor.UnsupportedError)) ||
		!strings.Contains(err.Error(), `no handler named "kata"; it has runc`) {
		t.Errorf("result %+v, error %v", result, err)
	}
	n.want(pod, "")
}

func givenItsSpec(t *testing.T, n *node) {
	pod := helloPod("told", nil, "sleep")
	pod.Labels = map[string]string{"app": "told"}
	pod.Spec.Hostname, pod.Spec.Subdomain, pod.Spec.SetHostnameAsFQDN = "host", "sub", new(true)
	pod.Spec.HostAliases = []v1.HostAlias{{IP: "192.0.2.9", Hostnames: []string{"db", "db.test"}}}
	pod.Spec.EnableServiceLinks = new(true) // the cluster has no services
	pod.Spec.DNSPolicy = v1.DNSNone
	pod.Spec.DNSConfig = &v1.PodDNSConfig{
		Nameservers: []string{"192.0.2.53", "192.0.2.54", "192.0.2.55", "192.0.2.56"}, Searches: []string{"a.test"},
		Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: new("2")}},
	}
	pod.Spec.SecurityContext = &v1.PodSecurityContext{
		RunAsUser: new(int64(1000)), RunAsGroup: new(int64(2000)), FSGroup: new(int64(3000)),
		SupplementalGroups: []int64{4000}, RunAsNonRoot: new(true),
		SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
	}
	c := &pod.Spec.Containers[0]
	c.WorkingDir = "/dev"
	c.Args = []string{"sleep", "-message", "$(GREETING) $$(GREETING) $(NOBODY)"}
	c.Env = []v1.EnvVar{
		{Name: "APP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}},
		{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: "GREETING", Value: "I am $(APP)"},
	}
	c.SecurityContext = &v1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_BIND_SERVICE"}},
	}
	c.Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("32Mi")}
	n.run(pod)
	proc := n.proc(pod, "c0-sleep")
	ip := n.observe(pod).Ips[0]
	for file, wants := range map[string][]string{
		"environ": {"APP=told\x00", "IP=" + ip + "\x00", "GREETING=I am told\x00"},
		"cmdline": {"-message\x00I am told $(GREETING) $(NOBODY)\x00"},
		"status": {
			"Uid:\t1000\t1000", "Gid:\t2000\t2000", "Groups:\t2000 3000 4000", "NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000400",
		},
		"root/etc/hosts":       {ip + "\thost.sub.shop.svc.\thost\n", "192.0.2.9\tdb\tdb.test\n"},
		"root/etc/hostname":    {"host.sub.shop.svc."},
		"root/etc/resolv.conf": {"nameserver 192.0.2.53\nnameserver 192.0.2.54\nnameserver 192.0.2.55\n", "search a.test\n", "options ndots:2\n"},
		"mountinfo":            {" / / ro,", " /dev/termination-log rw,"},
	} {
		text := read(t, filepath.Join(proc, file))
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q:\n%s", file, want, strings.ReplaceAll(text, "\x00", "\n"))
			}
		}
	}
	if text := read(t, filepath.Join(proc, "root/etc/resolv.conf")); strings.Contains(text, "192.0.2.56") {
		t.Errorf("a fourth name server:\n%s\nwant text without %q", text, "192.0.2.56")
	}
	if env := read(t, filepath.Join(proc, "environ")); strings.Contains(env, "_SERVICE_") {
		t.Errorf("the environment has services, and there are none:\n%s", strings.ReplaceAll(env, "\x00", "\n"))
	}
	if cwd, err := os.Readlink(filepath.Join(proc, "cwd")); err != nil || cwd != "/dev" {
		t.Errorf("working directory %s, error %v, want %q", cwd, err, "/dev")
	}
}

// namespace returns the namespace of a process.
func namespace(t *testing.T, proc, kind string) string {
	t.Helper()
	name, err := os.Readlink(filepath.Join(proc, "ns", kind))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func givenNamespacesOfOthers(t *testing.T, n *node) {
	const self = "/proc/self"
	alone := helloPod("alone", nil, "sleep", "sleep")
	host := helloPod("host", nil, "sleep")
	host.Spec.HostNetwork, host.Spec.HostPID, host.Spec.HostIPC = true, true, true
	together := helloPod("together", nil, "sleep", "sleep")
	together.Spec.ShareProcessNamespace = new(true)
	for _, pod := range []*v1.Pod{alone, host, together} {
		n.run(pod)
	}
	for _, kind := range []string{"net", "pid", "ipc"} {
		own, hosts := namespace(t, n.proc(alone, "c0-sleep"), kind), namespace(t, self, kind)
		if own == hosts {
			t.Errorf("a pod has the host's namespace %s", kind)
		}
		if got := namespace(t, n.proc(host, "c0-sleep"), kind); got != hosts {
			t.Errorf("a pod with the host's namespace %s has %s, not %s", kind, got, hosts)
		}
	}
	same := func(pod *v1.Pod) bool {
		return namespace(t, n.proc(pod, "c0-sleep"), "pid") == namespace(t, n.proc(pod, "c1-sleep"), "pid")
	}
	if same(alone) || !same(together) {
		t.Errorf("the containers of a pod share their processes: %v; with shareProcessNamespace: %v", same(alone), same(together))
	}
	alone.Spec.EphemeralContainers = []v1.EphemeralContainer{{
		EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "look", Image: alone.Spec.Containers[0].Image, Args: []string{"sleep"}},
		TargetContainerName:      "c1-sleep",
	}}
	n.sync(alone)
	if got, want := namespace(t, n.proc(alone, "look"), "pid"), namespace(t, n.proc(alone, "c1-sleep"), "pid"); got != want {
		t.Errorf("an ephemeral container is among the processes %s, not those of its target, %s", got, want)
	}
}

func givenHooks(t *testing.T, n *node) {
	pod := helloPod("hooked", nil, "sleep", "sleep")
	exec := func(words string) *v1.LifecycleHandler {
		return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: strings.Fields(words)}}
	}
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: exec("/hello crash -after 0s"), PreStop: exec("/hello init"),
	}
	pod.Spec.Containers[1].Lifecycle = &v1.Lifecycle{
		PostStart: exec("/hello init"), PreStop: exec("/hello init -after 1s"),
	}
	n.t.Cleanup(func() {
		if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err != nil {
			n.t.Error(err)
		}
	})
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if err == nil || result.Reasons["c0-sleep"].Reason != "PostStartHookError" {
		t.Errorf("reasons %v, error %v", result.Reasons, err)
	}
	if got := n.describe(pod); !strings.Contains(got, "c0-sleep-0:exited") || !strings.Contains(got, "c1-sleep-0:running") {
		t.Errorf("the runtime has %s, want text with %q and with %q", got, "c0-sleep-0:exited", "c1-sleep-0:running")
	}
	begun := time.Now()
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 90); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < time.Second || took > time.Minute {
		t.Errorf("the pod ended after %s, and its preStop hook takes a second", took)
	}
}

func givenAStopSignal(t *testing.T, n *node) {
	pod := helloPod("signaled", nil, "sleep -ignore-term")
	interrupt := v1.SIGINT
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: &interrupt}
	n.run(pod)
	log := filepath.Join(n.config.PodLogsDir, "shop_signaled_uid-signaled", "c0-sleep", "0.log")
	wantLine := func(line string) {
		t.Helper()
		eventually.That(t, line, func() bool { return strings.Contains(read(t, log), line) })
	}
	wantLine("hello from sleep") // so it handles signals
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	wantLine("ignoring interrupt")
}

func givenAllAgain(t *testing.T, n *node) {
	pod := helloPod("again", []string{"init"}, "crash -code 42 -after 100ms", "sleep")
	pod.Spec.RestartPolicy = v1.RestartPolicyNever
	restartAllOn(&pod.Spec.Containers[0], 42)
	n.run(pod)
	ended := func(word string) {
		t.Helper()
		eventually.That(t, word, func() bool { return strings.Contains(n.describe(pod), word) })
	}
	ended("c0-init-0:exited(0)")
	n.sync(pod)
	ended("c1-crash-0:exited(42)")
	n.sync(pod)
	ended("c0-init-1:exited(0)")
	if got := n.describe(pod); strings.Contains(got, "c1-") || strings.Contains(got, "c2-") || !strings.HasPrefix(got, "sandbox-0:ready") {
		t.Errorf("the runtime has %s, want the init container alone, in the same sandbox", got)
	}
	n.sync(pod)
	if got := n.describe(pod); !strings.Contains(got, "c1-crash-1:") || !strings.Contains(got, "c2-sleep-1:running") {
		t.Errorf("the runtime has %s, want text with %q and with %q", got, "c1-crash-1:", "c2-sleep-1:running")
	}
}
