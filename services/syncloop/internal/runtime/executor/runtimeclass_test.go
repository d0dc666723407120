package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// classes holds the runtime classes of a cluster: handlers by name.
type classes struct {
	handlers map[string]string
	// away is true while the classes are not known.
	away  bool
	users []types.UID
}

func (c *classes) Use(pod *v1.Pod) {
	if !slices.Contains(c.users, pod.UID) {
		c.users = append(c.users, pod.UID)
	}
}

func (c *classes) Forget(uid types.UID) {
	c.users = slices.DeleteFunc(c.users, func(u types.UID) bool { return u == uid })
}

func (c *classes) Handler(_ context.Context, pod *v1.Pod) (string, error) {
	class := runtimeclasses.ClassOf(pod)
	switch handler, ok := c.handlers[class]; {
	case class == "":
		return "", nil
	case c.away:
		return "", &runtimeclasses.UnknownError{Class: class, Why: "the API server: it is away"}
	case ok:
		return handler, nil
	}
	return "", apierrors.NewNotFound(nodev1.Resource("runtimeclass"), class)
}

// newClassed returns a node of a cluster with these classes, and a pod with a class.
func newClassed(
	t *testing.T,
	c *classes,
	class string,
	change ...func(*executor.Config),
) (*node, *recordedEvents, *v1.Pod) {
	t.Helper()
	events := &recordedEvents{}
	n := newNode(t, append(change, func(cfg *executor.Config) { cfg.RuntimeClasses, cfg.Events = c, events })...)
	pod := newPod("a")
	pod.Spec.RuntimeClassName = &class
	return n, events, pod
}

// handler returns the handler of the pod's newest sandbox.
func (n *node) handler(pod *v1.Pod) string {
	return n.observe(pod).GetSandboxes()[0].GetRuntimeHandler()
}

func TestTheClassOfAPodNamesItsHandler(t *testing.T) {
	c := &classes{handlers: map[string]string{"fast": "runc"}}
	n, _, pod := newClassed(t, c, "fast")
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
	if got := n.handler(pod); got != "runc" {
		t.Errorf("the sandbox has the handler %q, want %q", got, "runc")
	}
	if len(c.users) != 1 {
		t.Errorf("%v name a class, want exactly one", c.users)
	}
	if err := n.manager.ReleasePod(n.ctx, pod); err != nil || len(c.users) != 0 {
		t.Errorf("after the pod %v name a class; error %v", c.users, err)
	}
}

func TestAPodWaitsForItsClass(t *testing.T) {
	c, counted := &classes{}, prometheus.NewRegistry()
	n, events, pod := newClassed(t, c, "late", func(cfg *executor.Config) { cfg.Metrics = executor.NewMetrics(counted) })
	for away, want := range map[bool]string{
		false: `runtimeclass.node.k8s.io "late" not found`,
		true:  `runtimeclass "late" is not known yet: the API server: it is away`,
	} {
		c.away = away
		result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
		if err == nil || !strings.Contains(result.SandboxError.Error(), want) ||
			errors.As(err, new(*executor.UnsupportedError)) {
			t.Errorf("result %+v, error %v, want %s", result, err, want)
		}
		events.want(t, "Warning FailedCreatePodSandBox [] Failed to create pod sandbox: "+want)
		n.want(pod, "")
	}
	c.away, c.handlers = false, map[string]string{"late": "runc"}
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
	metricstest.Want(t, counted, 3, "kubelet_started_pods_total")
	metricstest.Want(t, counted, 2, "kubelet_started_pods_errors_total")
}

func TestAClassWhoseHandlerTheRuntimeDoesNotHave(t *testing.T) {
	n, events, pod := newClassed(t, &classes{handlers: map[string]string{"sealed": "kata"}}, "sealed")
	const want = `spec.runtimeClassName: the runtime has no handler named "kata", which the runtimeclass "sealed" asks for; it has runc: `
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if !errors.As(result.SandboxError, new(*executor.UnsupportedError)) || !strings.Contains(err.Error(), want) {
		t.Errorf("result %+v, error %v", result, err)
	}
	if got := events.take(); !strings.Contains(got, "FailedCreatePodSandBox") || !strings.Contains(got, want) {
		t.Errorf("events\n%s\nwant text with %q and with %q", got, "FailedCreatePodSandBox", want)
	}
	n.want(pod, "")
}

// TestARunningPodNeedsNoAPIServerForItsClass checks restarts of containers and new sandboxes while the classes are not
// known.
func TestARunningPodNeedsNoAPIServerForItsClass(t *testing.T) {
	c := &classes{handlers: map[string]string{"fast": "runc"}}
	n, _, pod := newClassed(t, c, "fast")
	withVolume(pod, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, rro(v1.RecursiveReadOnlyEnabled, true))
	n.sync(pod)
	c.away = true
	n.cri.Exit(n.id(pod, "a"), 1)
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:exited(1) a-1:running")
	if !n.created(pod, "a").GetMounts()[0].GetRecursiveReadOnly() {
		t.Error("the features of the handler are not used any more")
	}
	n.cri.KillSandbox(n.observe(pod).GetSandboxes()[0].GetId())
	n.sync(pod)
	if got := n.observe(pod).GetSandboxes(); got[0].GetAttempt() != 1 || got[0].GetRuntimeHandler() != "runc" {
		t.Errorf("the sandboxes are %v, want got[0].Attempt 1 and got[0].RuntimeHandler %q", got, "runc")
	}
	c.away, c.handlers = false, nil
	n.cri.KillSandbox(n.observe(pod).GetSandboxes()[0].GetId())
	if _, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod)); !apierrors.IsNotFound(err) {
		t.Errorf("the class is gone, and the error is %v", err)
	}
}

// TestAHostsNameThatIsTooLong uses a host name that is with its domain too long for the kernel: the pod stays Pending,
// with an event at each try.
func TestAHostsNameThatIsTooLong(t *testing.T) {
	events := &recordedEvents{}
	n := newNode(t, func(cfg *executor.Config) { cfg.Events, cfg.Kubelet.ClusterDomain = events, "cluster.local" })
	pod := newPod("a")
	pod.Spec.Hostname, pod.Spec.Subdomain, pod.Spec.SetHostnameAsFQDN = strings.Repeat("a", 60), "t", new(true)
	for range 2 {
		result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
		if err == nil || result.SandboxError == nil || errors.As(err, new(*executor.UnsupportedError)) {
			t.Errorf("result %+v, error %v", result, err)
		}
		events.want(t, "Warning FailedCreatePodSandBox [] Failed to create pod sandbox: failed to construct FQDN from pod hostname and cluster domain, FQDN "+
			pod.Spec.Hostname+".t.shop.svc.cluster.local is too long (64 characters is the max, 85 characters requested)")
		n.want(pod, "")
	}
}

// TestStrictGroupsNeedARuntimeThatSaysSo checks this because a runtime without the policy would add the groups of the
// image to the process.
func TestStrictGroupsNeedARuntimeThatSaysSo(t *testing.T) {
	n := newNode(t)
	pod, strict := newPod("a"), v1.SupplementalGroupsPolicyStrict
	pod.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
	result, err := n.manager.SyncPod(n.ctx, pod, nil)
	if !errors.As(result.SandboxError, new(*executor.UnsupportedError)) ||
		!strings.Contains(err.Error(), "supplementalGroupsPolicy") {
		t.Errorf("result %+v, error %v", result, err)
	}
	n.want(pod, "")
	n.cri.SupportStrictGroups()
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
}
