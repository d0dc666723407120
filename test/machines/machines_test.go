// Package machines tests a node whose parts are on two machines: two network namespaces with a link between them.
// syncloop and nodestatus are on one, configmux and pleg on the other. containerd is real.
package machines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/logbuffer"
	"github.com/quartet-node/quartet/test/require"
)

// near is the machine of the containers, far the other one.
const (
	near, far = 0, 1
	// patience is the time limit for what takes the longest: a cut link is noticed after 25 s.
	patience = 90 * time.Second
)

// places are the machines and ports of the services.
var places = map[layout.Service]struct{ machine, port int }{
	layout.SyncLoop: {near, 7443}, layout.NodeStatus: {near, 7444},
	layout.ConfigMux: {far, 7441}, layout.PLEG: {far, 7442},
}

// addresses are those of the two machines on their link.
var addresses = [2]string{"192.0.2.1", "192.0.2.2"}

// world is a node on two machines.
type world struct {
	t    *testing.T
	node *livenode.Node
	// dir has a directory of certificates for each part.
	dir      string
	networks [2]string
	ca       *authority.Authority
	// args are the arguments of the services as quartet starts them.
	args map[layout.Service][]string
	logs map[layout.Service]*logbuffer.Buffer
	// stops end the services that run.
	stops map[layout.Service]func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	require.Root(t, "network namespaces and containers")
	for _, command := range []string{"ip", "nsenter", "unshare"} {
		_, err := exec.LookPath(command)
		require.NoError(t, err)
	}
	node, err := livenode.New(livenode.Bin(), "machines")
	must(t, err)
	t.Cleanup(func() { must(t, node.Remove(context.Background())) })
	w := &world{
		t: t, node: node, dir: t.TempDir(), ca: authority.New(t, "ca"),
		args: map[layout.Service][]string{}, logs: map[layout.Service]*logbuffer.Buffer{},
		stops: map[layout.Service]func(){},
	}
	must(t, node.Up(t.Context()))
	for _, service := range layout.Services() {
		id, err := node.PID(string(service))
		must(t, err)
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id))
		must(t, err)
		w.args[service] = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	}
	must(t, node.StopServices(t.Context()))
	w.connectMachines()
	return w
}

// connectMachines makes two network namespaces with a link.
func (w *world) connectMachines() {
	w.t.Helper()
	for i := range w.networks {
		w.networks[i] = fmt.Sprintf("quartet-%d-%d", os.Getpid(), i)
		w.ip("netns", "add", w.networks[i])
		w.t.Cleanup(func() { w.ip("netns", "delete", w.networks[i]) })
	}
	w.ip("-n", w.networks[near], "link", "add", "link0", "type", "veth", "peer", "name", "link0", "netns", w.networks[far])
	for i, network := range w.networks {
		w.ip("-n", network, "address", "add", addresses[i]+"/30", "dev", "link0")
		w.ip("-n", network, "link", "set", "link0", "up")
		w.ip("-n", network, "link", "set", "lo", "up")
	}
}

func (w *world) ip(args ...string) {
	w.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// inside returns a command on a machine. It shares the file systems, as "ip netns exec" would not.
func (w *world) inside(machine int, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + w.networks[machine]}, args...)...)
}

// issue issues the certificate of a part, and returns the flags.
func (w *world) issue(by *authority.Authority, request authority.Request) []string {
	w.t.Helper()
	dir := filepath.Join(w.dir, request.Name)
	must(w.t, os.MkdirAll(dir, 0o700))
	return flags(by.Issue(w.t, dir, request))
}

func flags(files peertls.Files) []string {
	return []string{"--tls-cert=" + files.Cert, "--tls-key=" + files.Key, "--tls-ca=" + files.CA}
}

// of returns what the certificate of a part has.
func of(service layout.Service) authority.Request {
	return authority.Request{Name: string(service), Hosts: []string{string(service), addresses[places[service].machine]}}
}

// otherClock runs a command with a clock that has counted another time since the boot.
var otherClock = []string{"unshare", "--time", "--boottime", "1000000", "--fork", "--kill-child"}

// start starts a service on its machine, by a command if one is given. It is ended at the end of the test.
func (w *world) start(service layout.Service, by ...string) {
	w.t.Helper()
	var args []string
	for _, arg := range w.args[service] {
		if !strings.Contains(arg, "-address=unix:") && !strings.HasPrefix(arg, "--state-dir=") {
			args = append(args, arg)
		}
	}
	here := places[service]
	state := w.node.Layout.StateDir()
	if here.machine == far {
		state = filepath.Join(state, "far")
	}
	l, err := layout.New(state)
	must(w.t, err)
	args = append(args, "--state-dir="+state, "--metrics-listen=none")
	args = append(args, w.issue(w.ca, of(service))...)
	for _, peer := range layout.Services() {
		address := l.Address(peer)
		if places[peer].machine != here.machine {
			address = fmt.Sprintf("%s:%d", addresses[places[peer].machine], places[peer].port)
		}
		args = append(args, fmt.Sprintf("--%s-address=%s", peer, address))
	}
	args = append(args, fmt.Sprintf("--tls-listen=:%d", here.port), "--observe-names=syncloop,nodestatus,configmux,laptop")
	switch service {
	case layout.ConfigMux:
		args = append(args, "--secret-names=syncloop")
	case layout.SyncLoop:
		args = append(args, "--evict-names=nodestatus")
	case layout.PLEG:
		args = append(args, "--admin-names=syncloop")
	case layout.NodeStatus:
	}
	cmd := w.inside(here.machine, append(by, args...)...)
	w.logs[service] = new(logbuffer.Buffer)
	cmd.Stdout, cmd.Stderr = w.logs[service], w.logs[service]
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(w.t, cmd.Start())
	w.stops[service] = sync.OnceFunc(func() {
		end := syscall.SIGTERM
		if len(by) > 0 {
			end = syscall.SIGKILL // unshare does not take SIGTERM while its child runs
		}
		_ = cmd.Process.Signal(end)
		_ = cmd.Wait()
	})
	w.t.Cleanup(func() {
		w.stops[service]()
		if w.t.Failed() {
			w.t.Logf("%s:\n%s", service, last(w.logs[service].String()))
		}
	})
}

// last returns the end of a log.
func last(log string) string { return log[max(0, len(log)-6000):] }

// laptop runs the command line on the far machine.
func (w *world) laptop(tls []string, args ...string) (string, error) {
	for _, peer := range layout.Services() {
		args = append(args, fmt.Sprintf("--%s-address=%s:%d", peer, addresses[places[peer].machine], places[peer].port))
	}
	args = append([]string{filepath.Join(livenode.Bin(), "quartet")}, append(args, tls...)...)
	out, err := w.inside(far, args...).CombinedOutput()
	return string(out), err
}

// pods returns the pods by their name.
func (w *world) pods(tls []string) map[string]*v1.Pod {
	out, err := w.laptop(tls, "get", "pods", "-o", "json")
	var list v1.PodList
	if err == nil {
		err = json.NewDecoder(strings.NewReader(out)).Decode(&list)
	}
	if err != nil {
		w.t.Logf("quartet get pods: %v\n%s", err, out)
	}
	pods := map[string]*v1.Pod{}
	for i := range list.Items {
		name, _, _ := strings.Cut(list.Items[i].Name, "-")
		pods[name] = &list.Items[i]
	}
	return pods
}

// place places the manifest of a pod.
func (w *world) place(name string) {
	w.t.Helper()
	must(w.t, w.node.Place(name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, args: [sleep]}]
`, name, livenode.Image)))
}

// runs waits until pods are ready.
func (w *world) runs(tls []string, names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.await("pod "+name+" is ready", func() bool {
			pod := w.pods(tls)[name]
			return pod != nil && livenode.Ready(pod)
		})
	}
}

func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	eventually.Wait{Patience: patience, Interval: 200 * time.Millisecond}.That(w.t, what, holds)
}

// disconnection returns a function that reports whether syncloop has lost both parts of the far machine since now.
func (w *world) disconnection() func() bool {
	begin := len(w.logs[layout.SyncLoop].String())
	return func() bool {
		lost := map[layout.Service]bool{}
		for line := range strings.Lines(w.logs[layout.SyncLoop].String()[begin:]) {
			for _, part := range []layout.Service{layout.ConfigMux, layout.PLEG} {
				if strings.Contains(line, "stream is disconnected") && strings.Contains(line, "stream="+string(part)+" ") {
					lost[part] = true
				}
			}
		}
		return len(lost) == 2
	}
}

// delay delays what the far machine sends: by netem, or by a link so slow that packets wait for each other, because not
// every kernel has netem.
func (w *world) delay() error {
	var errs []error
	for _, discipline := range []string{"netem delay 300ms", "tbf rate 64kbit burst 1600 latency 60s"} {
		args := append([]string{"-n", w.networks[far], "qdisc", "add", "dev", "link0", "root"}, strings.Fields(discipline)...)
		out, err := exec.Command("tc", args...).CombinedOutput()
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("tc %s: %w: %s", discipline, err, out))
	}
	return errors.Join(errs...)
}

// TestANodeOnTwoMachines: pods start across a link that is cut and with certificates that are rotated, and no running
// pod notices. A peer without a good certificate is refused.
func TestANodeOnTwoMachines(t *testing.T) {
	w := newWorld(t)
	laptop := w.issue(w.ca, authority.Request{Name: "laptop"})
	for _, service := range layout.Services() {
		w.start(service)
	}
	w.place("first")
	w.runs(laptop, "first")
	before := w.pods(laptop)["first"].Status.ContainerStatuses[0]

	t.Run("a wrong certificate is refused", func(t *testing.T) { w.refused(t) })

	t.Run("the link is cut", func(*testing.T) {
		disconnected := w.disconnection()
		w.ip("-n", w.networks[near], "link", "set", "link0", "down")
		w.place("second")
		w.await("syncloop has noticed the cut", disconnected)
		w.ip("-n", w.networks[near], "link", "set", "link0", "up")
		w.runs(laptop, "second")
	})

	t.Run("packets are dropped", func(t *testing.T) {
		disconnected := w.disconnection()
		if out, err := w.inside(far, "iptables", "-A", "INPUT", "-j", "DROP").CombinedOutput(); err != nil {
			require.NoError(t, fmt.Errorf("iptables: %w\n%s", err, out))
		}
		w.place("third")
		w.await("syncloop has noticed that nothing arrives", disconnected)
		if out, err := w.inside(far, "iptables", "-D", "INPUT", "-j", "DROP").CombinedOutput(); err != nil {
			t.Fatalf("iptables: %v\n%s", err, out)
		}
		w.runs(laptop, "third")
	})

	t.Run("packets are late", func(t *testing.T) {
		require.NoError(t, w.delay())
		w.place("late")
		w.runs(laptop, "late")
		must(t, exec.Command("tc", "-n", w.networks[far], "qdisc", "delete", "dev", "link0", "root").Run())
	})

	t.Run("certificates are rotated", func(t *testing.T) {
		next := authority.New(t, "next")
		all := []authority.Request{{Name: "laptop"}}
		for _, service := range layout.Services() {
			all = append(all, of(service))
		}
		for _, steps := range []func(authority.Request){
			func(r authority.Request) { authority.Trust(t, filepath.Join(w.dir, r.Name, "ca.crt"), w.ca, next) },
			func(r authority.Request) { w.issue(next, r) },
			func(r authority.Request) { authority.Trust(t, filepath.Join(w.dir, r.Name, "ca.crt"), next) },
		} {
			for _, request := range all {
				steps(request)
			}
		}
		w.ca = next
		w.place("fourth")
		w.runs(laptop, "fourth")
		// Connections with certificates of the first authority end, and are made anew.
		w.await("syncloop's connection is made anew", func() bool {
			return strings.Contains(w.logs[layout.ConfigMux].String(), "the certificate of the peer is not valid any more") ||
				strings.Contains(w.logs[layout.SyncLoop].String(), "the certificate of the peer is not valid any more")
		})
		w.place("fifth")
		w.runs(laptop, "fifth")
	})

	t.Run("the clocks differ", func(t *testing.T) {
		if out, err := exec.Command(otherClock[0], append(otherClock[1:], "true")...).CombinedOutput(); err != nil {
			require.NoError(t, fmt.Errorf("a time namespace: %w\n%s", err, out))
		}
		w.stops[layout.PLEG]()
		w.start(layout.PLEG, otherClock...)
		w.place("sixth")
		w.runs(laptop, "sixth")
	})

	after := w.pods(laptop)["first"].Status.ContainerStatuses[0]
	if after.ContainerID != before.ContainerID || after.RestartCount != 0 {
		t.Errorf("the first pod has the container %s with %d restarts, before it was %s",
			after.ContainerID, after.RestartCount, before.ContainerID)
	}
}

// refused checks the errors of those who may not call.
func (w *world) refused(t *testing.T) {
	other := authority.New(t, "other")
	strange := w.issue(other, authority.Request{Name: "strange"})
	authority.Trust(t, filepath.Join(w.dir, "strange", "ca.crt"), w.ca)
	for want, tls := range map[string][]string{
		"unknown certificate authority": strange,
		"expired certificate":           w.issue(w.ca, authority.Request{Name: "expired", For: -time.Minute}),
		"--observe-names":               w.issue(w.ca, authority.Request{Name: "nobody"}),
		"give --tls-cert":               nil,
	} {
		if out, err := w.laptop(tls, "get", "pods"); err == nil || !strings.Contains(out, want) {
			t.Errorf("quartet get pods: %v, want %q in\n%s", err, want, out)
		}
	}
	laptop := w.issue(w.ca, authority.Request{Name: "laptop"})
	if out, err := w.laptop(laptop, "debug", "syncloop", "log-level", "4"); err == nil || !strings.Contains(out, `role "admin"`) {
		t.Errorf("quartet debug: %v, want the role in\n%s", err, out)
	}
	if !strings.Contains(w.logs[layout.SyncLoop].String(), "refused a peer on the network") {
		t.Error("syncloop has not logged a refused peer")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
