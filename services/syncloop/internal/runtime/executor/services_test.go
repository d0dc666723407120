package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// links holds the services of a cluster: the value of WEB_SERVICE_HOST.
type links struct {
	host string
	// unknown is true until the services have been listed.
	unknown   bool
	forgotten []types.UID
}

func (l *links) Variables(context.Context, *v1.Pod) ([]v1.EnvVar, error) {
	if l.unknown {
		return nil, &servicelinks.UnknownError{Why: "the API server has not answered yet"}
	}
	return []v1.EnvVar{{Name: "WEB_SERVICE_HOST", Value: l.host}}, nil
}

func (l *links) Forget(uid types.UID) { l.forgotten = append(l.forgotten, uid) }

// newLinked returns a node of a cluster with these services, and a pod of a source.
func newLinked(t *testing.T, l *links, source string) (*node, *v1.Pod) {
	t.Helper()
	n := newNode(t, func(cfg *executor.Config) { cfg.Services = l })
	pod := newPod("a")
	pod.Annotations = map[string]string{podset.AnnotationSource: source}
	return n, pod
}

// restarted returns the same node with the Manager of a new process.
func (n *node) restarted() *node {
	again := *n
	again.manager = executor.New(n.config)
	return &again
}

func variable(c *runtimeapi.ContainerConfig, name string) string {
	for _, e := range c.GetEnvs() {
		if e.GetKey() == name {
			return string(e.GetValue())
		}
	}
	return ""
}

func (n *node) wantHost(pod *v1.Pod, want string) {
	n.t.Helper()
	if got := variable(n.created(pod, "a"), "WEB_SERVICE_HOST"); got != want {
		n.t.Errorf("WEB_SERVICE_HOST is %q, want %q", got, want)
	}
}

// TestAPodOfTheAPIServerWaitsForServices also checks the reason, and that the pod can be stopped. Other pods start.
func TestAPodOfTheAPIServerWaitsForServices(t *testing.T) {
	l := &links{host: "10.96.0.2", unknown: true}
	n, pod := newLinked(t, l, "api")
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	const want = "services have not yet been read at least once, cannot construct envvars: the API server has not answered yet"
	if why := result.Reasons["a"]; !errors.As(err, new(*servicelinks.UnknownError)) || why.Reason != "CreateContainerConfigError" || why.Message != want {
		t.Errorf("result %+v, error %v", result, err)
	}
	n.want(pod, "sandbox-0:ready")
	static := newPod("a")
	static.Name, static.UID, static.Annotations = "static", "u-2", map[string]string{podset.AnnotationSource: "file"}
	n.sync(static)
	n.want(static, "sandbox-0:ready a-0:running")
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 1); err != nil {
		t.Fatal(err)
	}
	if err := n.manager.ReleasePod(n.ctx, pod); err != nil || len(l.forgotten) != 1 {
		t.Errorf("after the pod %v are forgotten, error %v", l.forgotten, err)
	}
	late := newPod("a")
	late.Name, late.UID, late.Annotations = "late", "u-3", pod.Annotations
	if _, err := n.manager.SyncPod(n.ctx, late, n.observe(late)); err == nil {
		t.Fatal("it does not wait")
	}
	l.unknown = false
	n.sync(late)
	n.want(late, "sandbox-0:ready a-0:running")
	n.wantHost(late, "10.96.0.2")
}

// TestAChangedServiceRestartsNothing checks that only a container that is created after the change has the new value.
func TestAChangedServiceRestartsNothing(t *testing.T) {
	l := &links{host: "10.96.0.2"}
	n, pod := newLinked(t, l, "api")
	n.sync(pod)
	l.host = "10.96.0.3"
	n.sync(pod)
	again := n.restarted()
	again.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
	n.wantHost(pod, "10.96.0.2")
	n.cri.Exit(n.id(pod, "a"), 1)
	again.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:exited(1) a-1:running")
	n.wantHost(pod, "10.96.0.3")
}

// TestAPodThatRanGoesOnWithoutServices restarts syncloop while the API server is unavailable: containers restart with
// their last variables, also those of a static pod.
func TestAPodThatRanGoesOnWithoutServices(t *testing.T) {
	for _, source := range []string{"api", "file"} {
		t.Run(source, func(t *testing.T) {
			l := &links{host: "10.96.0.2"}
			n, pod := newLinked(t, l, source)
			n.sync(pod)
			l.host, l.unknown = "", true
			again := n.restarted()
			again.sync(pod)
			n.want(pod, "sandbox-0:ready a-0:running")
			n.cri.Exit(n.id(pod, "a"), 1)
			again.sync(pod)
			n.want(pod, "sandbox-0:ready a-0:exited(1) a-1:running")
			n.wantHost(pod, "10.96.0.2")
		})
	}
}

// TestDamagedServiceVariables checks that a file that a crash of the machine has left empty counts as missing and is
// replaced.
func TestDamagedServiceVariables(t *testing.T) {
	l := &links{host: "10.96.0.2"}
	n, pod := newLinked(t, l, "api")
	n.sync(pod)
	file := filepath.Join(n.config.RootDir, "pods", string(pod.UID), "service-variables.json")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l.unknown = true
	n.cri.Exit(n.id(pod, "a"), 1)
	if _, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod)); !errors.As(err, new(*servicelinks.UnknownError)) {
		t.Errorf("the error is %v", err)
	}
	l.unknown = false
	n.sync(pod)
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "10.96.0.2") {
		t.Errorf("the file has %s, error %v, want text with %q", text, err, "10.96.0.2")
	}
}
