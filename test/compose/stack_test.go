// Package compose tests deploy/compose as users run it: with real images, docker compose, a Docker engine, Jaeger, and
// pods on the bundled runtime.
package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/dockerhost"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/livenode"
)

const (
	// patience is the time limit of a wait on a busy machine.
	patience = 3 * time.Minute
	interval = 100 * time.Millisecond
	file     = "../../deploy/compose/compose.yaml"
)

// stack is the compose project of one test, with a node in a state directory of its own. images is its directory of
// files with IDs of images, and jaegerImage the ID of Jaeger's.
type stack struct {
	t                           *testing.T
	host                        *dockerhost.Host
	node                        *livenode.Node
	env                         []string
	jaeger, images, jaegerImage string
}

// newStack loads the images and creates a configuration; it starts nothing. What is left of the stack when the test
// ends is removed.
func newStack(t *testing.T) *stack {
	t.Helper()
	s := &stack{t: t, host: dockerhost.Start(t), images: t.TempDir()}
	s.pinImages()
	node, err := livenode.New(livenode.Bin(), "compose")
	s.must(err)
	t.Cleanup(func() {
		if err := os.RemoveAll(node.Layout.StateDir()); err != nil {
			t.Error(err)
		}
	})
	s.node = node
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	s.must(os.WriteFile(config, fmt.Appendf(nil,
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: cgroupfs\naddress: 127.0.0.1\nreadOnlyPort: %s\nhealthzPort: %s\n%s",
		node.Port(), node.HealthzPort(), livenode.AnyMachine), 0o644))
	query, otlp := freePort(t), freePort(t)
	s.jaeger = "http://127.0.0.1:" + query
	s.env = []string{
		"COMPOSE_PROFILES=bundled,tracing", "COMPOSE_PROJECT_NAME=" + filepath.Base(node.Layout.StateDir()),
		"QUARTET_STATE_DIR=" + node.Layout.StateDir(), "QUARTET_CONFIG=" + config, "JAEGER_PORT=" + query, "OTLP_PORT=" + otlp,
		"QUARTET_IMAGES=" + s.images, "JAEGER_IMAGE=" + s.jaegerImage,
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := s.tryCompose("logs", "--no-color", "--tail", "60", "prepare", "containerd", "configmux", "pleg", "syncloop", "nodestatus")
			t.Logf("%v\n%s", err, logs)
		}
		if out, err := s.tryCompose("--profile", "*", "down", "--volumes"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	return s
}

func (s *stack) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// on returns the stack for a subtest.
func (s *stack) on(t *testing.T) *stack {
	c := *s
	c.t = t
	return &c
}

func (s *stack) compose(args ...string) string {
	s.t.Helper()
	return s.host.Compose(s.t, s.env, append([]string{"-f", file}, args...)...)
}

func (s *stack) tryCompose(args ...string) (string, error) {
	return s.host.TryCompose(s.t, s.env, append([]string{"-f", file}, args...)...)
}

// quartet runs the command line on the machine, not in a container.
func (s *stack) quartet(args ...string) string {
	s.t.Helper()
	out, err := s.node.Command(s.t.Context(), args...)
	s.must(err)
	return out
}

// container returns the id of the first running container of a service.
func (s *stack) container(service layout.Service) string {
	s.t.Helper()
	return s.containers(string(service))[0]
}

// containers returns the ids of all running containers of a service.
func (s *stack) containers(service string) []string {
	s.t.Helper()
	ids := strings.Fields(s.compose("ps", "--quiet", "--no-trunc", service))
	if len(ids) == 0 {
		s.t.Fatalf("no container of %s runs", service)
	}
	return ids
}

// inspect returns a part of docker's description of a container, selected by a template.
func (s *stack) inspect(id, template string) string {
	s.t.Helper()
	return strings.TrimSpace(s.host.Docker(s.t, "inspect", "--format", template, id))
}

// health returns the output of the health check command of a service.
func (s *stack) health(id string) (string, error) {
	check := []string{}
	if err := json.Unmarshal([]byte(s.inspect(id, "{{json .Config.Healthcheck.Test}}")), &check); err != nil {
		return "", err
	}
	out, err := s.host.TryDocker(append([]string{"exec", id}, check[1:]...)...)
	return strings.TrimSpace(out), err
}

// awaitHealth waits until the health check of a service prints a text.
func (s *stack) awaitHealth(id, want string) {
	s.t.Helper()
	var last string
	var err error
	s.await(fmt.Sprintf("the health of %s is %q", id[:12], want), func() bool {
		last, err = s.health(id)
		return last == want
	}, func() string { return fmt.Sprintf("%q, %v", last, err) })
}

func (s *stack) place(name, manifest string) {
	s.t.Helper()
	s.must(s.node.Place(name+".yaml", manifest))
}

// pod returns a pod by the name in its manifest; nil when it does not exist, or the node does not answer.
func (s *stack) pod(name string) *v1.Pod {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	items, err := s.node.Pods(ctx)
	if err != nil {
		return nil
	}
	for i := range items {
		if strings.HasPrefix(items[i].Name, name+"-") {
			return &items[i]
		}
	}
	return nil
}

// awaitReady waits until a pod is Ready, and returns it.
func (s *stack) awaitReady(name string) *v1.Pod {
	s.t.Helper()
	var pod *v1.Pod
	s.await("pod "+name+" is Ready", func() bool {
		pod = s.pod(name)
		return livenode.Ready(pod)
	}, func() string { return fmt.Sprintf("%+v", pod) })
	return pod
}

func (s *stack) await(what string, holds func() bool, last func() string) {
	s.t.Helper()
	eventually.Wait{Patience: patience, Interval: interval, State: last}.That(s.t, what, holds)
}

// instances returns the containers of a pod with their restart counts. They must not change when pods are not affected.
func instances(pod *v1.Pod) string {
	var words []string
	for _, c := range pod.Status.ContainerStatuses {
		words = append(words, fmt.Sprintf("%s %s restarts=%d ready=%v", c.Name, c.ContainerID, c.RestartCount, c.Ready))
	}
	return strings.Join(words, "; ")
}

// manifest returns a pod with an init container and a server, with additional fields of its spec.
func manifest(name string, more ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: compose}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: before, image: %[2]q, args: [init]}
  containers:
  - name: main
    image: %[2]q
    args: [sleep]
%[3]s`, name, livenode.Image, strings.Join(more, ""))
}

func freePort(t *testing.T) string {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

// badConfig returns a configuration with an unknown field.
func badConfig(t *testing.T) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPaht: /x\n"
	if err := os.WriteFile(config, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return config
}
