package nodecluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/livenode"
)

// space creates a namespace for a test. When the test ends, its objects are removed at once.
func space(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	admin := whole.Client(t)
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if t.Failed() {
			t.Log(kubectlOrError(ctx, "get", "pods", "-n", name, "-o", "wide"))
			t.Log(kubectlOrError(ctx, "get", "events", "-n", name))
		}
		if err := admin.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		awaitIn(ctx, t, "the namespace "+name+" is gone", func() bool {
			_, err := admin.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})
	awaitThat(t, "the namespace has its service account", func() bool {
		_, err := admin.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return admin
}

// awaitThat polls until a condition holds, which what describes.
func awaitThat(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventually.Wait{Patience: patience, Interval: interval}.That(t, what, holds)
}

func awaitIn(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventually.Wait{Interval: interval}.In(ctx, t, what, holds)
}

// kubectlCommand returns a kubectl command of the administrator.
func kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(livenode.Bin(), "tools", "kubectl"), append([]string{"--kubeconfig", adminConfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(adminConfig), "NO_PROXY=*")
	return cmd
}

// kubectl runs kubectl, and fails the test when it fails.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := kubectlCommand(ctx, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func kubectlOrError(ctx context.Context, args ...string) string {
	out, err := kubectlCommand(ctx, args...).CombinedOutput()
	if err != nil {
		out = fmt.Appendf(out, "kubectl %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// template returns a pod template with one container that runs the example program.
func template(labels map[string]string, args ...string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](2),
			Containers:                    []corev1.Container{{Name: "main", Image: livenode.Image, Args: args, ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}
}

// pods returns the pods of a namespace that a label selector matches.
func pods(t *testing.T, admin kubernetes.Interface, namespace, selector string) []corev1.Pod {
	t.Helper()
	list, err := admin.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// get returns a pod; nil when it does not exist.
func get(t *testing.T, admin kubernetes.Interface, namespace, name string) *corev1.Pod {
	t.Helper()
	pod, err := admin.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// runPod creates a pod and waits until it is Ready in the cluster.
func runPod(t *testing.T, admin kubernetes.Interface, namespace, name string, args ...string) *corev1.Pod {
	t.Helper()
	made := template(map[string]string{"app": name}, args...)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: made.Labels}, Spec: made.Spec}
	if _, err := admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, name+" is Ready", func() bool { return livenode.Ready(get(t, admin, namespace, name)) })
	return get(t, admin, namespace, name)
}

// started returns the ids and restart counts of all containers of pods. They do not change unless a container restarts.
func started(pods []corev1.Pod) []string {
	var all []string
	for i := range pods {
		for _, c := range pods[i].Status.ContainerStatuses {
			all = append(all, fmt.Sprintf("%s/%s %s, %d restarts", pods[i].Name, c.Name, c.ContainerID, c.RestartCount))
		}
	}
	slices.Sort(all)
	return all
}

// theNode returns the Node as the cluster has it.
func theNode(t *testing.T, admin kubernetes.Interface) *corev1.Node {
	t.Helper()
	n, err := admin.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// condition returns the status of a condition of a Node; empty when it is missing.
func condition(n *corev1.Node, kind corev1.NodeConditionType) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return ""
}

// kill ends processes of the node by SIGKILL, all at once.
func kill(t *testing.T, names ...string) {
	t.Helper()
	var errs []error
	for _, name := range names {
		pid, err := node.PID(name)
		if err == nil {
			err = sendKill(pid)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
