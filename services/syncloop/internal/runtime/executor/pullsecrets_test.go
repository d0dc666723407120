package executor_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// given holds secrets of the namespace shop, which are not known while away is true, and the pods that use any.
type given struct {
	configobjects.None
	mu      sync.Mutex
	away    bool
	secrets map[string]*v1.Secret
	users   map[types.UID]bool
}

func (g *given) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch secret := g.secrets[name]; {
	case g.away:
		return nil, &configobjects.UnknownError{
			Key: configobjects.Key{Kind: configobjects.Secret, Namespace: namespace, Name: name}, Why: "configmux is away",
		}
	case secret == nil || namespace != "shop":
		return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
	default:
		return secret, nil
	}
}

func (g *given) Use(pod *v1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.users[pod.UID] = true
}

func (g *given) Forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.users, uid)
}

// give adds a secret to the namespace, of the type for registry credentials.
func (g *given) give(name, key, value string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	secret := &v1.Secret{Data: map[string][]byte{key: []byte(value)}, Type: v1.SecretTypeOpaque}
	if key == v1.DockerConfigJsonKey {
		secret.Type = v1.SecretTypeDockerConfigJson
	}
	g.secrets[name] = secret
}

func (g *given) setAway(away bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.away = away
}

// newGiven returns a node with secrets whose events are recorded. The node's own credentials are of the user node.
func newGiven(t *testing.T) (*node, *given, *recordedEvents) {
	g, events := &given{secrets: map[string]*v1.Secret{}, users: map[types.UID]bool{}}, &recordedEvents{}
	return newNode(t, func(c *executor.Config) {
		c.Objects, c.Events = g, events
		c.Credentials = func(context.Context, string) []*runtimeapi.AuthConfig {
			return []*runtimeapi.AuthConfig{{Username: "node", Password: "node-secret"}}
		}
	}), g, events
}

// TestAPodWithoutItsPullSecretsIsStartedWithTheNodesCredentials also checks the kubelet's event for secrets that cannot
// be read.
func TestAPodWithoutItsPullSecretsIsStartedWithTheNodesCredentials(t *testing.T) {
	n, _, events := newGiven(t)
	n.cri.Protect("registry.test/app:1", "node", "node-secret")
	pod := newPod("a")
	pod.Spec.Containers[0].Image = "registry.test/app:1"
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "first"}, {Name: ""}, {Name: "second"}}
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
	events.want(t,
		"Warning FailedToRetrieveImagePullSecret [] Unable to retrieve some image pull secrets (first, second); attempting to pull the image may not succeed.",
		`Normal Pulling [a] Pulling image "registry.test/app:1"`,
		"Normal Created [a] Container created", "Normal Started [a] Container started")
	n.sync(pod)
	events.want(t) // nothing is started, and there is no event
}

func TestAPodsImagesArePulledWithItsPullSecrets(t *testing.T) {
	n, g, events := newGiven(t)
	g.setAway(true)
	n.cri.Protect("registry.test/app:1", "pod", "pod-secret")
	n.cri.Protect("registry.test/files:1", "pod", "pod-secret")
	pod := newPod("a")
	pod.Spec.Containers[0].Image = "registry.test/app:1"
	pod.Spec.Volumes = []v1.Volume{{Name: "files", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "registry.test/files:1"}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "files", MountPath: "/files"}}
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "pull"}}
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if want := (executor.ContainerReason{Reason: "CreateContainerConfigError", Message: `secret "pull" is not known yet: configmux is away`}); err == nil || result.Reasons["a"] != want {
		t.Errorf("before it is known whether there is a secret: %+v, error %v", result.Reasons, err)
	}
	if n.cri.Count("PullImage", "") != 0 {
		t.Error("an image was pulled without the secret")
	}
	events.take()
	g.setAway(false)
	g.give("pull", v1.DockerConfigJsonKey, `{"auths":{"registry.test":{"username":"pod","password":"pod-secret"}}}`)
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
	if got := events.take(); strings.Contains(got, "Failed") {
		t.Errorf("events\n%s\nwant text without %q", got, "Failed")
	}
}

// TestAContainerWaitsForWhatItsEnvironmentIsOf checks that the container starts as soon as the objects exist. Later
// changes do not affect it.
func TestAContainerWaitsForWhatItsEnvironmentIsOf(t *testing.T) {
	n, g, events := newGiven(t)
	pod := newPod("a", "b")
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "PASSWORD", ValueFrom: &v1.EnvVarSource{
		SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "db"}, Key: "password"},
	}}}
	fails := func(want string) {
		t.Helper()
		result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
		if err == nil || result.Reasons["a"] != (executor.ContainerReason{Reason: "CreateContainerConfigError", Message: want}) {
			t.Errorf("reasons %+v, error %v", result.Reasons, err)
		}
		if unsupported := (*executor.UnsupportedError)(nil); errors.As(err, &unsupported) {
			t.Errorf("the request ended with %v", err)
		}
	}
	fails(`secret "db" not found`)
	n.want(pod, "sandbox-0:ready b-0:running")
	if got := events.take(); !strings.Contains(got, `Warning Failed [a] Error: secret "db" not found`) {
		t.Errorf("events\n%s\nwant text with %q", got, `Warning Failed [a] Error: secret "db" not found`)
	}
	g.give("db", "other", "geheim")
	fails("couldn't find key password in Secret shop/db")
	g.give("db", "password", "geheim")
	n.sync(pod)
	n.want(pod, "sandbox-0:ready b-0:running a-0:running")
	if envs := n.created(pod, "a").GetEnvs(); len(envs) != 1 || envs[0].GetKey() != "PASSWORD" || string(envs[0].GetValue()) != "geheim" {
		t.Errorf("environment %v, want exactly one, envs[0].Key %q and envs[0].Value %q", envs, "PASSWORD", "geheim")
	}
	g.give("db", "password", "another")
	n.sync(pod)
	n.want(pod, "sandbox-0:ready b-0:running a-0:running")
	if got := events.take(); strings.Contains(got, "geheim") {
		t.Errorf("events\n%s\nwant text without %q", got, "geheim")
	}
}

func TestAPodUsesItsObjectsUntilNothingOfItRuns(t *testing.T) {
	n, g, _ := newGiven(t)
	pod := newPod("a")
	n.sync(pod)
	if !g.users[pod.UID] {
		t.Error("a pod that runs uses nothing")
	}
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 0); err != nil {
		t.Fatal(err)
	}
	if err := n.manager.ReleasePod(n.ctx, pod); err != nil {
		t.Fatal(err)
	}
	if g.users[pod.UID] {
		t.Error("a pod that has ended uses something")
	}
}
