// Package shadow tests `syncloop --shadow` beside a whole node on a real containerd. The shadow is on the network of the
// node, with a certificate that may only observe.
package shadow

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/criproxy"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/logbuffer"
)

const (
	// patience is the time limit for what a node does in seconds.
	patience = 2 * time.Minute
	// exitDiffers is the exit code of a shadow with differences.
	exitDiffers = 3
)

// rig is a node, and what is needed to follow it.
type rig struct {
	node      *harness.Node
	proxy     *criproxy.Proxy
	addresses []string
	files     peertls.Files
}

func start(t *testing.T) *rig {
	t.Helper()
	containerd := harness.StartContainerd(t)
	r := &rig{}
	var err error
	if r.proxy, err = criproxy.Start(containerd.Endpoint, filepath.Join(harness.ShortDir(t), "proxy.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, r.proxy.Close()) })
	containerd.Endpoint = r.proxy.Endpoint()
	ca := authority.New(t, "ca")
	hosts, listen := []string{"127.0.0.1"}, []string{}
	for _, service := range layout.Services() {
		port, err := freeport.Find()
		must(t, err)
		hosts = append(hosts, string(service))
		listen = append(listen, fmt.Sprintf("%s=127.0.0.1:%d", service, port))
		r.addresses = append(r.addresses, fmt.Sprintf("--%s-address=127.0.0.1:%d", service, port))
	}
	served := ca.Issue(t, t.TempDir(), authority.Request{Name: "node", Hosts: hosts})
	r.files = ca.Issue(t, t.TempDir(), authority.Request{Name: "observer", Hosts: []string{"observer"}})
	r.node = harness.StartNodeAs(t, containerd, func(cmd *exec.Cmd) {
		cmd.Args = append(cmd.Args, "--tls-listen="+strings.Join(listen, ","), "--tls-cert="+served.Cert, "--tls-key="+served.Key,
			"--tls-ca="+served.CA, "--observe-names=observer")
	})
	return r
}

// follower is a shadow that runs.
type follower struct {
	cmd         *exec.Cmd
	out, log    logbuffer.Buffer
	temporary   string
	connections atomic.Int32
}

// follow starts a shadow with lines of a KubeletConfiguration. It has the address of a runtime that only counts who
// connects.
func (r *rig) follow(t *testing.T, config string) *follower {
	t.Helper()
	dir := harness.ShortDir(t)
	f := &follower{temporary: t.TempDir()}
	listener, err := net.Listen("unix", filepath.Join(dir, "runtime.sock"))
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.connections.Add(1)
			_ = conn.Close()
		}
	}()
	file := filepath.Join(dir, "config.yaml")
	header := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + livenode.AnyMachine
	must(t, os.WriteFile(file, []byte(header+config), 0o600))
	f.cmd = exec.Command(filepath.Join(harness.BinDir(t), "syncloop"), append([]string{
		"--shadow", "-o", "json", "--shadow-wait=5s", "--config=" + file, "--state-dir=" + filepath.Join(dir, "none"),
		"--container-runtime-endpoint=unix://" + filepath.Join(dir, "runtime.sock"),
		"--tls-cert=" + r.files.Cert, "--tls-key=" + r.files.Key, "--tls-ca=" + r.files.CA,
	}, r.addresses...)...)
	f.cmd.Env = append(os.Environ(), "TMPDIR="+f.temporary)
	f.cmd.Stdout, f.cmd.Stderr = &f.out, &f.log
	must(t, f.cmd.Start())
	t.Cleanup(func() {
		if f.cmd.ProcessState == nil {
			_ = f.cmd.Process.Kill()
			_ = f.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("shadow:\n%s%s", f.out.String(), f.log.String())
		}
	})
	return f
}

// difference is a line of the output.
type difference struct{ Namespace, Pod, Action, Shadow, Running string }

// summary is the last line of the output.
type summary struct {
	Pods                   int
	Compared               bool
	Decisions, Differences map[string]int
}

func (f *follower) printed(t *testing.T) (differences []difference, last *summary) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader([]byte(f.out.String())))
	for lines.Scan() {
		var line struct {
			Difference *difference
			Summary    *summary
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			continue // it is not whole yet
		}
		if line.Difference != nil {
			differences = append(differences, *line.Difference)
		}
		last = line.Summary
	}
	return differences, last
}

// stop ends the shadow as Ctrl-C does, and returns its exit code and its summary.
func (f *follower) stop(t *testing.T) (int, summary) {
	t.Helper()
	must(t, f.cmd.Process.Signal(syscall.SIGINT))
	err := f.cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	_, last := f.printed(t)
	if last == nil {
		t.Fatalf("the shadow has printed no summary: %s%s", f.out.String(), f.log.String())
	}
	return f.cmd.ProcessState.ExitCode(), *last
}

// TestAShadowSaysWhatItWouldDoDifferently follows a node with its own configuration and with another one, while pods
// start, crash, change and go. With its own there is no difference. The pods do not notice.
func TestAShadowSaysWhatItWouldDoDifferently(t *testing.T) {
	r := start(t)
	r.place(t, "kept", "serve")
	r.await(t, "kept", harness.Ready)
	same := r.follow(t, "")
	other := r.follow(t, "maxPods: 2\n")
	r.awaitFollowing(t, same, other)

	r.place(t, "second", "serve")
	r.await(t, "second", harness.Ready)
	r.place(t, "third", "serve")
	r.await(t, "third", harness.Ready)
	ids := map[string]string{}
	for _, name := range []string{"kept", "second", "third"} {
		ids[name] = container(r.await(t, name, harness.Ready))
	}
	r.until(t, "the difference is printed", func() bool {
		found, _ := other.printed(t)
		return len(found) > 0
	})
	r.place(t, "crashes", "crash")
	r.await(t, "crashes", func(p *v1.Pod) bool {
		return p.Status.ContainerStatuses[0].RestartCount >= 2
	})
	must(t, os.Remove(filepath.Join(r.node.Manifests, "second.yaml")))
	r.until(t, "the removed pod is gone", func() bool { return r.node.Pod(t.Context(), "second") == nil })

	found, _ := other.printed(t)
	want := difference{Namespace: "default", Pod: "third-node", Action: "admit", Running: "run it"}
	got := found[0]
	if !strings.HasPrefix(got.Shadow, "refuse it: OutOfpods: ") {
		t.Errorf("the shadow would %q, want a refusal with OutOfpods", got.Shadow)
	}
	if got.Shadow = ""; got != want {
		t.Errorf("the first difference is %+v, want %+v", got, want)
	}
	if code, last := other.stop(t); code != exitDiffers || !last.Compared || last.Differences["admit"] == 0 {
		t.Errorf("exit code %d, summary %+v, want %d and a difference of admit", code, last, exitDiffers)
	}
	code, last := same.stop(t)
	if code != 0 || !last.Compared || len(last.Differences) > 0 || last.Pods != 4 || last.Decisions["start"] < 4 {
		t.Errorf("with the same configuration: exit code %d, summary %+v, want 0, four pods and no difference", code, last)
	}
	r.unnoticed(t, ids, same, other)
}

// unnoticed checks that the shadows have called no runtime, and left no file, and that no pod was touched.
func (r *rig) unnoticed(t *testing.T, ids map[string]string, followers ...*follower) {
	t.Helper()
	for _, f := range followers {
		if n := f.connections.Load(); n != 0 {
			t.Errorf("a shadow has connected to the runtime %d times", n)
		}
		left, err := os.ReadDir(f.temporary)
		if err != nil || len(left) > 0 {
			t.Errorf("a shadow has left %v, error %v", left, err)
		}
	}
	for _, name := range []string{"kept", "third"} {
		pod := r.await(t, name, harness.Ready)
		if got := container(pod); got != ids[name] || pod.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("the container of %s is %s, and was %s", name, got, ids[name])
		}
	}
	if n := r.proxy.Count("RunPodSandbox"); n != 4 {
		t.Errorf("the runtime was asked for %d sandboxes, want one for each of four pods", n)
	}
}

// awaitFollowing waits until shadows have compared the pod that runs already: it has made a decision about it.
func (r *rig) awaitFollowing(t *testing.T, followers ...*follower) {
	t.Helper()
	for _, f := range followers {
		r.until(t, "the shadow follows", func() bool { return strings.Contains(f.log.String(), "comparing") })
	}
}

func (r *rig) place(t *testing.T, name, mode string) {
	t.Helper()
	r.node.WriteManifest(t, name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
    - name: main
      image: %q
      imagePullPolicy: IfNotPresent
      args: [%s]
      env: [{name: TOKEN, value: hunter2-%s}]
      volumeMounts: [{name: scratch, mountPath: /scratch}]
      readinessProbe: {exec: {command: ["/hello", "init"]}, periodSeconds: 1}
`, name, harness.HelloImage, mode, name))
}

// await waits for a pod.
func (r *rig) await(t *testing.T, name string, holds func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	var pod *v1.Pod
	r.until(t, "the pod "+name+" is as expected", func() bool {
		pod = r.node.Pod(t.Context(), name)
		return pod != nil && len(pod.Status.ContainerStatuses) > 0 && holds(pod)
	})
	return pod
}

func (r *rig) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually.In(ctx, t, what, holds)
}

func container(pod *v1.Pod) string { return pod.Status.ContainerStatuses[0].ContainerID }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
