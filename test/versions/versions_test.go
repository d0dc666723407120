// Package versions runs processes of the last release beside processes of this commit, as during an upgrade or a
// downgrade of a node one process at a time.
package versions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

const (
	// namespace is that of the pods, and steady the prefix of those that run during the whole test.
	namespace, steady = "versions", "steady"
	// interval is the time between two checks that the steady pods are Ready.
	interval = 50 * time.Millisecond
)

// steadySpecs are the specs of the steady pods by name. The first is applied, the others are manifests.
var steadySpecs = map[string]string{
	"steady-applied": `
  containers:
  - {name: main, image: IMAGE, args: [sleep], envFrom: [{secretRef: {name: kept}}]}
`,
	"steady-plain": `
  containers:
  - {name: main, image: IMAGE, args: [sleep]}
`,
	"steady-probed": `
  containers:
  - name: main
    image: IMAGE
    args: [serve]
    livenessProbe: {httpGet: {port: 8080}, periodSeconds: 1, failureThreshold: 30}
    readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1, failureThreshold: 30}
`,
	"steady-sidecar": `
  initContainers:
  - {name: beside, image: IMAGE, args: [sleep], restartPolicy: Always}
  containers:
  - {name: main, image: IMAGE, args: [sleep], volumeMounts: [{name: data, mountPath: /data}]}
  volumes:
  - {name: data, emptyDir: {}}
`,
}

// mixedNode is a node whose processes are of two versions.
type mixedNode struct {
	*livenode.Node

	// bin is the directory that the node starts its processes from.
	bin string
	// programs are the directories of the programs by version.
	programs map[version]string
}

type version string

const (
	released version = "the last release"
	current  version = "this commit"
)

// TestNoPodNoticesMixedVersions runs each process of the last release with three of this commit, each process of
// this commit with three of the last release, and everything between, while pods run, start, change and end.
func TestNoPodNoticesMixedVersions(t *testing.T) {
	n := startNode(t)
	before := n.startSteady(t)
	problems := n.watchSteady(t)
	services := layout.Services()
	all := func(v version) {
		for _, service := range services {
			n.replace(t, service, v)
		}
	}
	for _, service := range services {
		n.replace(t, service, released)
		n.replace(t, service, current)
	}
	all(released)
	for _, service := range services {
		n.replace(t, service, current)
		n.replace(t, service, released)
	}
	slices.Reverse(services)
	all(current)
	for _, problem := range problems() {
		t.Error(problem)
	}
	for name, ids := range before {
		p := n.await(t, name, "is Ready", livenode.Ready)
		if after := containers(p); after != ids {
			t.Errorf("the containers of %s went from %s to %s", name, ids, after)
		}
		for _, status := range p.Status.ContainerStatuses {
			if status.RestartCount != 0 {
				t.Errorf("container %s of %s counts %d restarts, want 0", status.Name, name, status.RestartCount)
			}
		}
	}
}

// startNode starts a node of this commit, and removes it when the test ends.
func startNode(t *testing.T) *mixedNode {
	t.Helper()
	today, err := filepath.Abs(livenode.Bin())
	if err != nil {
		t.Fatal(err)
	}
	require.NoError(t, livenode.CannotRun(today))
	programs := map[version]string{current: today, released: filepath.Join(today, "released")}
	n := &mixedNode{bin: t.TempDir(), programs: programs}
	for _, name := range append(layout.Services(), "quartet") {
		for _, dir := range n.programs {
			if _, err := os.Stat(filepath.Join(dir, string(name))); err != nil {
				require.NoError(t, fmt.Errorf("%w: run make build test-tools", err))
			}
		}
	}
	entries, err := os.ReadDir(today)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.Symlink(filepath.Join(today, entry.Name()), filepath.Join(n.bin, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
	// The command looks for the services beside its own file, not beside a link to it.
	for _, name := range append(layout.Services(), "quartet") {
		n.install(t, name, current)
	}
	if n.Node, err = livenode.New(n.bin, "versions"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			n.keepLogs(t)
		}
		if err := n.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := n.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *mixedNode) keepLogs(t *testing.T) {
	t.Helper()
	kept, err := os.MkdirTemp("", "quartet-versions-logs-")
	if err == nil {
		err = os.CopyFS(filepath.Join(kept, "logs"), os.DirFS(n.Layout.Logs()))
	}
	t.Logf("the node's logs are in %s (error %v)", kept, err)
}

// install puts a program into the directory of the node's programs, as a package manager does: by a rename.
func (n *mixedNode) install(t *testing.T, name layout.Service, v version) {
	t.Helper()
	source, target := filepath.Join(n.programs[v], string(name)), filepath.Join(n.bin, string(name))
	if err := copyProgram(source, target+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(target+".new", target); err != nil {
		t.Fatal(err)
	}
}

func copyProgram(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // it was only read
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	_, err = io.Copy(target, source)
	return err
}

// replace exchanges a service for another version of it. When the next process serves, a pod starts, changes and ends.
func (n *mixedNode) replace(t *testing.T, service layout.Service, v version) {
	t.Helper()
	old, err := n.PID(string(service))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("moved-%s-%d", service, old)
	n.place(t, name, "one")
	n.exchange(t, service, v)
	first := n.await(t, name, fmt.Sprintf("is Ready with %s of %s", service, v), livenode.Ready)
	n.place(t, name, "two")
	n.await(t, name, fmt.Sprintf("was changed with %s of %s", service, v), func(p *v1.Pod) bool {
		return livenode.Ready(p) && p.UID != first.UID && p.Spec.Containers[0].Env[0].Value == "two"
	})
	if err := n.TakeAway(name + ".yaml"); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, fmt.Sprintf("%s is gone with %s of %s", name, service, v), func() bool {
		names, err := n.Names(t.Context())
		return err == nil && !strings.Contains(names, name)
	})
}

// exchange installs another version of a service, kills its process, and returns when the next one runs.
func (n *mixedNode) exchange(t *testing.T, service layout.Service, v version) {
	t.Helper()
	old, err := n.PID(string(service))
	if err != nil {
		t.Fatal(err)
	}
	n.install(t, service, v)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, fmt.Sprintf("%s of %s runs", service, v), func() bool {
		pid, err := n.PID(string(service))
		return err == nil && pid != old && n.runs(pid, service)
	})
}

// runs reports whether a process runs the installed program.
func (n *mixedNode) runs(pid int, service layout.Service) bool {
	program, err := os.Stat(filepath.Join(n.bin, string(service)))
	if err != nil {
		return false
	}
	running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && os.SameFile(program, running)
}

func manifest(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s}\nspec:\n  terminationGracePeriodSeconds: 1%s",
		name, namespace, strings.ReplaceAll(spec, "IMAGE", livenode.Image))
}

// place writes the manifest of a pod with a value that changes it.
func (n *mixedNode) place(t *testing.T, name, value string) {
	t.Helper()
	spec := "\n  containers:\n  - {name: main, image: IMAGE, args: [sleep], env: [{name: VALUE, value: " + value + "}]}\n"
	if err := n.Place(name+".yaml", manifest(name, spec)); err != nil {
		t.Fatal(err)
	}
}

// await waits until a pod meets a condition.
func (n *mixedNode) await(t *testing.T, name, what string, holds func(*v1.Pod) bool) *v1.Pod {
	t.Helper()
	var found *v1.Pod
	eventually.That(t, name+" "+what, func() bool {
		pods, err := n.Pods(t.Context())
		i := slices.IndexFunc(pods, func(p v1.Pod) bool {
			return p.Namespace == namespace && strings.HasPrefix(p.Name, name+"-")
		})
		if err != nil || i < 0 || !holds(&pods[i]) {
			return false
		}
		found = &pods[i]
		return true
	})
	return found
}

// startSteady starts the steady pods, and returns their containers by pod.
func (n *mixedNode) startSteady(t *testing.T) map[string]string {
	t.Helper()
	applied := filepath.Join(t.TempDir(), "applied.yaml")
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: kept, namespace: " + namespace + "}\nstringData: {TOKEN: value}\n---\n"
	content := secret + manifest("steady-applied", steadySpecs["steady-applied"])
	if err := os.WriteFile(applied, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Command(t.Context(), "apply", "-f", applied); err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	for name, spec := range steadySpecs {
		if name == "steady-applied" {
			continue
		}
		if err := n.Place(name+".yaml", manifest(name, spec)); err != nil {
			t.Fatal(err)
		}
	}
	for name := range steadySpecs {
		before[name] = containers(n.await(t, name, "is Ready", livenode.Ready))
	}
	return before
}

// containers returns the IDs of a pod's containers.
func containers(p *v1.Pod) string {
	var ids []string
	for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		ids = append(ids, status.Name+"="+status.ContainerID)
	}
	return strings.Join(ids, " ")
}

// watchSteady checks the steady pods until the returned function is called. It returns what was wrong. A missing
// answer is not, because syncloop may be down.
func (n *mixedNode) watchSteady(t *testing.T) func() []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var problems []string
	var done sync.WaitGroup
	done.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if pods, err := n.Pods(ctx); err == nil {
				if problem := wrong(pods); problem != "" && !slices.Contains(problems, problem) {
					problems = append(problems, problem)
				}
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	return func() []string {
		cancel()
		done.Wait()
		return problems
	}
}

// wrong returns what is wrong with the steady pods of an answer; empty if nothing.
func wrong(pods []v1.Pod) string {
	count := 0
	for i := range pods {
		if !strings.HasPrefix(pods[i].Name, steady) {
			continue
		}
		count++
		if !livenode.Ready(&pods[i]) {
			return fmt.Sprintf("%s was not Ready: %+v", pods[i].Name, pods[i].Status.Conditions)
		}
	}
	if count != len(steadySpecs) {
		return fmt.Sprintf("an answer had %d of %d steady pods", count, len(steadySpecs))
	}
	return ""
}
