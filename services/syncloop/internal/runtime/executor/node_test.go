package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// created records the environment of each created container.
type created struct {
	internalapi.RuntimeService
	envs map[string][]string
}

func (c created) CreateContainer(
	ctx context.Context,
	sandbox string,
	config *runtimeapi.ContainerConfig,
	of *runtimeapi.PodSandboxConfig,
) (string, error) {
	for _, env := range config.GetEnvs() {
		c.envs[of.GetMetadata().GetUid()] = append(c.envs[of.GetMetadata().GetUid()], env.GetKey()+"="+string(env.GetValue()))
	}
	return c.RuntimeService.CreateContainer(ctx, sandbox, config, of)
}

// askingPod has its memory limit and its node's address in its environment.
func askingPod(uid string) *v1.Pod {
	pod := newPod("main")
	pod.UID, pod.Name = types.UID(uid), uid
	pod.Spec.Containers[0].Env = []v1.EnvVar{
		{Name: "MEMORY", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
		{Name: "HOST", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.hostIP"}}},
	}
	return pod
}

// TestAPodGetsTheLastKnownFactsOfTheNode checks that a pod gets the last known facts while nodestatus is unavailable or
// hangs: no start waits for it.
func TestAPodGetsTheLastKnownFactsOfTheNode(t *testing.T) {
	envs := map[string][]string{}
	var answer atomic.Pointer[func(context.Context) (*v1.Node, error)]
	answerWith := func(f func(context.Context) (*v1.Node, error)) { answer.Store(&f) }
	n := newNode(t, func(c *executor.Config) {
		inner := c.Runtime
		c.Runtime = func() (internalapi.RuntimeService, error) {
			runtime, err := inner()
			return created{runtime, envs}, err
		}
		c.Node = func(ctx context.Context) (*v1.Node, error) { return (*answer.Load())(ctx) }
	})
	start := func(uid string) {
		t.Helper()
		pod := askingPod(uid)
		n.sync(pod)
		n.want(pod, "sandbox-0:ready main-0:running")
	}

	answerWith(func(context.Context) (*v1.Node, error) {
		return &v1.Node{Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("512Mi")},
			Addresses: []v1.NodeAddress{
				{Type: v1.NodeHostName, Address: "node-1"}, {Type: v1.NodeInternalIP, Address: "192.0.2.7"},
			},
		}}, nil
	})
	start("known")
	answerWith(func(context.Context) (*v1.Node, error) { return nil, errors.New("nodestatus is away") })
	start("away")
	answerWith(func(ctx context.Context) (*v1.Node, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	begun := time.Now()
	start("hangs")
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("a hanging nodestatus delayed a start for %v", took)
	}
	for _, uid := range []string{"known", "away", "hangs"} {
		if want := []string{"MEMORY=512", "HOST=192.0.2.7"}; !slices.Equal(envs[uid], want) {
			t.Errorf("pod %q has the environment %v, want %v", uid, envs[uid], want)
		}
	}
}

// TestARestartedContainerGetsTheFactsOfTheNode checks that a restarted container gets the current facts of the Node,
// also from a new process, and the last known ones while nodestatus is unavailable.
func TestARestartedContainerGetsTheFactsOfTheNode(t *testing.T) {
	reachable := func(context.Context) (*v1.Node, error) {
		return &v1.Node{Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("512Mi"), v1.ResourceEphemeralStorage: resource.MustParse("10Gi")},
			Addresses:   []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.7"}, {Type: v1.NodeInternalIP, Address: "2001:db8::7"}},
		}}, nil
	}
	for name, after := range map[string]func(context.Context) (*v1.Node, error){
		"reachable": reachable,
		"away":      func(context.Context) (*v1.Node, error) { return nil, errors.New("nodestatus is away") },
	} {
		t.Run(name, func(t *testing.T) {
			envs := map[string][]string{}
			n := newNode(t, func(c *executor.Config) {
				inner := c.Runtime
				c.Runtime = func() (internalapi.RuntimeService, error) {
					runtime, err := inner()
					return created{runtime, envs}, err
				}
				c.Node, c.NodeFile = reachable, filepath.Join(t.TempDir(), "node.json")
			})
			pod := askingPod("asks")
			pod.Spec.HostNetwork = true
			main := &pod.Spec.Containers[0]
			main.Env = append(main.Env,
				v1.EnvVar{Name: "DISK", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "limits.ephemeral-storage", Divisor: resource.MustParse("1Gi")}}},
				v1.EnvVar{Name: "IPS", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIPs"}}},
			)
			n.sync(pod)
			n.config.Node = after
			again := n.restarted()
			n.cri.Exit(n.id(pod, "main"), 1)
			again.sync(pod)
			want := []string{"MEMORY=512", "HOST=192.0.2.7", "DISK=10", "IPS=192.0.2.7,2001:db8::7"}
			if got := envs["asks"]; !slices.Equal(got, slices.Concat(want, want)) {
				t.Errorf("the environments are %v, want twice %v", got, want)
			}
		})
	}
}

// TestADamagedNodeFile checks that a damaged file counts as missing, and that one of v0.1.0 counts.
func TestADamagedNodeFile(t *testing.T) {
	good := `{"name": "node-1", "ips": ["192.0.2.9"], "allocatable": {"memory": "1Gi"}}`
	checked, err := statedir.WithChecksum([]byte(good), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		good:            "192.0.2.9",
		string(checked): "192.0.2.9",
		strings.Replace(string(checked), "192.0.2.9", "192.0.2.8", 1): "192.0.2.1",
		`{"ips": ["192.0.2.9"], "allo`:                                "192.0.2.1",
	} {
		file := filepath.Join(t.TempDir(), "node.json")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		n := newNode(t, func(c *executor.Config) { c.NodeFile = file })
		pod := askingPod("asks")
		n.sync(pod)
		if got := variable(n.created(pod, "main"), "HOST"); got != want {
			t.Errorf("with %s the address of the node is %q, want %q", content, got, want)
		}
	}
}
