package compose

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/leftovers"
)

// takeover is the time limit until a standby serves after the end of the first instance.
const takeover = 30 * time.Second

// TestANodeInContainers follows docs/howto/compose.md on one stack, in the order of a user's steps.
func TestANodeInContainers(t *testing.T) {
	leftovers.Watch(t)
	s := newStack(t)
	s.compose("up", "--detach", "--wait")
	for _, step := range []struct {
		name string
		do   func(*stack)
	}{
		{"a pod is Ready and its trace is one tree of all four and containerd", traceOfAStart},
		{"each container has the privileges of the document and no others", privileges},
		{"each container has an image by its ID, and a later build with the same tag changes none", images},
		{"no service can take another's name", namesOfTheirOwn},
		{"paths of the machine are the machine's", hostPath},
		{"a pod has its limits in a cgroup of its own, and leaves none", podCgroup},
		{"the metrics of all four are where Prometheus looks for them, and nowhere else", metrics},
		{"the command line works from a container", cli},
		{"each of the four killed, no pod notices, and the rest says what it misses", killInTurn},
		{"containerd killed, no pod notices", killContainerd},
		{"services that stand still are replaced, no pod notices", freeze},
		{"a standby takes over", standby},
		{"a second syncloop, nodestatus or pleg is refused and the holder named", secondOnes},
		{"a second pleg watches read-only", observer},
		{"one service is upgraded", upgrade},
		{"two stacks do not share a node", twoStacks},
		{"the node joins a cluster", joinsACluster},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(s.on(t)) }) {
			break
		}
	}
	s.compose("down")
	if out := s.compose("ps", "--all", "--quiet"); strings.TrimSpace(out) != "" {
		t.Errorf("after down there are containers: %s", out)
	}
}

func hostPath(s *stack) {
	dir := filepath.Join(s.node.Layout.StateDir(), "made", "by", "hostpath")
	s.place("paths", manifest("paths", fmt.Sprintf(`    volumeMounts: [{name: data, mountPath: /data}, {name: scratch, mountPath: /scratch}]
  volumes:
  - {name: data, hostPath: {path: %s, type: DirectoryOrCreate}}
  - {name: scratch, emptyDir: {}}
`, dir)))
	pod := s.awaitReady("paths")
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		s.t.Errorf("the directory of the hostPath was not made on the machine: %v", err)
	}
	logs := s.quartet("logs", pod.Name, "-n", pod.Namespace, "-c", "before")
	if strings.TrimSpace(logs) == "" {
		s.t.Error("the init container has no logs")
	}
	s.must(s.node.TakeAway("paths.yaml"))
	s.await("pod paths is gone", func() bool {
		names, err := s.node.Names(s.t.Context())
		return err == nil && !strings.Contains(names, "paths-")
	}, func() string { return "" })
}

func cli(s *stack) {
	if out := s.compose("run", "--rm", "-T", "quartet", "get", "pods", "-n", "compose"); !strings.Contains(out, "web-") {
		s.t.Errorf("get pods in a container says\n%s\nwant text with %q", out, "web-")
	}
}

// killInTurn kills each service with a signal: docker restarts it.
func killInTurn(s *stack) {
	before := instances(s.awaitReady("web"))
	waitsFor := map[layout.Service]map[layout.Service]string{
		layout.ConfigMux:  {layout.SyncLoop: "configmux"},
		layout.PLEG:       {layout.SyncLoop: "pleg", layout.NodeStatus: "pleg"},
		layout.SyncLoop:   {layout.NodeStatus: "syncloop"},
		layout.NodeStatus: {},
	}
	for i, service := range layout.Services() {
		// It is stopped first, so that the others have the time to report that it is missing.
		s.compose("kill", string(service))
		for other, word := range waitsFor[service] {
			s.awaitHealth(s.container(other), fmt.Sprintf("%s: serving; waits for: %s", other, word))
		}
		s.compose("up", "--detach", "--no-recreate", string(service))
		for _, other := range layout.Services() {
			s.awaitHealth(s.container(other), string(other)+": serving")
		}
		// A process that is killed behind docker's back is restarted.
		s.killProcess(s.container(service))
		name := fmt.Sprintf("after-%d", i)
		s.place(name, manifest(name))
		s.awaitReady(name)
		s.must(s.node.TakeAway(name + ".yaml"))
		if now := instances(s.awaitReady("web")); now != before {
			s.t.Errorf("after the death of %s the pod is another:\nbefore %s\nafter  %s", service, before, now)
		}
	}
}

// killProcess kills the first process of a container, and returns when docker has noticed.
func (s *stack) killProcess(id string) {
	s.t.Helper()
	started := s.inspect(id, "{{.State.StartedAt}}")
	var pid int
	_, err := fmt.Sscan(s.inspect(id, "{{.State.Pid}}"), &pid)
	s.must(err)
	s.must(syscall.Kill(pid, syscall.SIGKILL))
	s.await("docker has started "+id[:12]+" again", func() bool {
		return s.inspect(id, "{{.State.StartedAt}}") != started && s.inspect(id, "{{.State.Running}}") == "true"
	}, func() string { return s.inspect(id, "{{json .State}}") })
}

// freeze stops the services in their containers by SIGSTOP. Their guards end them with their goroutines in the log, and
// docker starts the containers again.
func freeze(s *stack) {
	before := instances(s.awaitReady("web"))
	started := map[string]string{}
	for _, service := range layout.Services() {
		id := s.container(service)
		started[id] = s.inspect(id, "{{.State.StartedAt}}")
		s.must(syscall.Kill(s.childOf(s.inspect(id, "{{.State.Pid}}")), syscall.SIGSTOP))
	}
	for _, service := range layout.Services() {
		id := s.container(service)
		s.await(string(service)+" is replaced", func() bool {
			return s.inspect(id, "{{.State.StartedAt}}") != started[id] && s.inspect(id, "{{.State.Running}}") == "true"
		}, func() string { return s.inspect(id, "{{json .State}}") })
		if log := s.logs(string(service)); !strings.Contains(log, "SIGQUIT: quit") {
			s.t.Errorf("the log of %s does not have its goroutines:\n%s", service, log)
		}
	}
	s.place("after-the-freeze", manifest("after-the-freeze"))
	s.awaitReady("after-the-freeze")
	s.must(s.node.TakeAway("after-the-freeze.yaml"))
	if now := instances(s.awaitReady("web")); now != before {
		s.t.Errorf("after all services stood still the pod is another:\nbefore %s\nafter  %s", before, now)
	}
}

// childOf returns the only child of a process. Each of its threads may have made it.
func (s *stack) childOf(process string) int {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join("/proc", process, "task", "*", "children"))
	s.must(err)
	for _, file := range files {
		children, err := os.ReadFile(file)
		s.must(err)
		var child int
		if _, err := fmt.Sscan(string(children), &child); err == nil {
			return child
		}
	}
	s.t.Fatalf("process %s has no child", process)
	return 0
}

func killContainerd(s *stack) {
	before := instances(s.awaitReady("web"))
	pid, err := s.node.PID("containerd")
	s.must(err)
	s.must(syscall.Kill(pid, syscall.SIGKILL))
	s.await("containerd runs again", func() bool {
		now, err := s.node.PID("containerd")
		return err == nil && now != pid
	}, func() string { return "" })
	id := s.containers("containerd")[0]
	s.await("containerd's health check succeeds", func() bool {
		_, err := s.health(id)
		return err == nil
	}, func() string { return s.inspect(id, "{{json .State.Health}}") })
	s.place("afterwards", manifest("afterwards"))
	s.awaitReady("afterwards")
	s.must(s.node.TakeAway("afterwards.yaml"))
	if now := instances(s.awaitReady("web")); now != before {
		s.t.Errorf("after the death of containerd the pod is another:\nbefore %s\nafter  %s", before, now)
	}
}

// standby removes the first instance, and the second serves in its place.
func standby(s *stack) {
	before := instances(s.awaitReady("web"))
	first := s.container(layout.ConfigMux)
	s.compose("up", "--detach", "--no-recreate", "--scale", "configmux=2", "configmux")
	second := slices.DeleteFunc(s.containers("configmux"), func(id string) bool { return id == first })[0]
	s.await("the second stands by", func() bool {
		health, err := s.health(second)
		return err == nil && strings.Contains(health, "standby")
	}, func() string { return s.host.Docker(s.t, "logs", second) })
	removals := strings.Count(s.logs("syncloop"), "op=REMOVE")
	s.host.Docker(s.t, "kill", first)
	died := time.Now()
	s.await("the second serves", func() bool {
		_, err := s.node.Command(s.t.Context(), "get", "sources")
		return err == nil
	}, func() string { return s.host.Docker(s.t, "logs", second) })
	if took := time.Since(died); took > takeover {
		s.t.Errorf("the standby took over after %v, want %v at most", took, takeover)
	}
	s.place("taken-over", manifest("taken-over"))
	s.awaitReady("taken-over")
	if now := strings.Count(s.logs("syncloop"), "op=REMOVE"); now != removals {
		s.t.Errorf("syncloop got %d removals when the serving process changed", now-removals)
	}
	s.must(s.node.TakeAway("taken-over.yaml"))
	if now := instances(s.awaitReady("web")); now != before {
		s.t.Errorf("the pod is another:\nbefore %s\nafter  %s", before, now)
	}
	s.compose("up", "--detach", "--no-recreate", "--scale", "configmux=1", "configmux")
	s.awaitHealth(s.container(layout.SyncLoop), "syncloop: serving")
}

func (s *stack) logs(service string) string {
	s.t.Helper()
	return s.compose("logs", "--no-color", service)
}

// secondOnes checks that a second container of a service, created by `run`, ends with the reason.
func secondOnes(s *stack) {
	for _, service := range []layout.Service{layout.SyncLoop, layout.NodeStatus, layout.PLEG} {
		_, err := s.tryCompose("run", "--rm", "-T", "--no-deps", string(service))
		if err == nil {
			s.t.Errorf("a second %s exited with code 0", service)
			continue
		}
		for _, want := range []string{"is locked by " + string(service), s.container(service)[:12], "docker stop"} {
			if !strings.Contains(err.Error(), want) {
				s.t.Errorf("a second %s does not say %q: %v", service, want, err)
			}
		}
	}
}

func observer(s *stack) {
	s.compose("--profile", "observer", "up", "--detach", "--no-recreate", "pleg-observer")
	s.awaitHealth(s.containers("pleg-observer")[0], "pleg: serving")
	s.awaitHealth(s.container(layout.PLEG), "pleg: serving")
	s.compose("--profile", "observer", "rm", "--stop", "--force", "pleg-observer")
}

// upgrade gives one service another image; compose replaces only that container.
func upgrade(s *stack) {
	before := instances(s.awaitReady("web"))
	ids := map[layout.Service]string{}
	for _, service := range layout.Services() {
		ids[service] = s.container(service)
	}
	image := s.otherImage("pleg")
	newer := *s
	newer.env = append(slices.Clone(s.env), "PLEG_VERSION="+s.pinned("next", "pleg", image))
	newer.compose("up", "--detach", "pleg")
	for _, service := range layout.Services() {
		if changed := s.container(service) != ids[service]; changed != (service == layout.PLEG) {
			s.t.Errorf("the container of %s was replaced: %v, want %v", service, changed, service == layout.PLEG)
		}
		s.awaitHealth(s.container(service), string(service)+": serving")
	}
	if got := s.inspect(s.container(layout.PLEG), "{{.Image}}"); got != image {
		s.t.Errorf("pleg has the image %s, want %s", got, image)
	}
	s.place("upgraded", manifest("upgraded"))
	s.awaitReady("upgraded")
	s.must(s.node.TakeAway("upgraded.yaml"))
	if now := instances(s.awaitReady("web")); now != before {
		s.t.Errorf("after the upgrade the pod is another:\nbefore %s\nafter  %s", before, now)
	}
	s.compose("up", "--detach", "pleg")
	s.awaitHealth(s.container(layout.SyncLoop), "syncloop: serving")
}

// twoStacks checks that a stack with the directories of another one is refused with the other's name.
func twoStacks(s *stack) {
	other := *s
	other.env = append(slices.Clone(s.env), "COMPOSE_PROJECT_NAME="+filepath.Base(s.node.Layout.StateDir())+"-other")
	defer other.compose("down")
	_, err := other.tryCompose("run", "--rm", "-T", "--no-deps", "syncloop")
	if err == nil || !strings.Contains(err.Error(), "is locked by syncloop") || !strings.Contains(err.Error(), s.container(layout.SyncLoop)[:12]) {
		s.t.Errorf("the syncloop of another stack says %v", err)
	}
}
