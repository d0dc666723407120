package show

import (
	"strings"
	"testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

func TestGetPodsOfANamespace(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	n.putPods()
	for _, test := range []struct{ args, want string }{
		{"", "pod/begun-node-1 pod/crash-node-1 pod/hello-node-1 pod/going-node-1"},
		{"-n kube-system", "pod/going-node-1"},
		{"--namespace default", "pod/begun-node-1 pod/crash-node-1 pod/hello-node-1"},
		{"-n kube-system going-node-1", "pod/going-node-1"},
		{"-n kube-system kube-system/going-node-1", "pod/going-node-1"},
		{"-n default hello-node-1", "pod/hello-node-1"},
		{"hello-node-1 kube-system/going-node-1", "pod/hello-node-1 pod/going-node-1"},
		{"-n elsewhere", ""},
	} {
		out := n.must(append([]string{"get", "pods", "-o", "name"}, strings.Fields(test.args)...)...)
		if got := strings.Join(strings.Fields(out), " "); got != test.want {
			t.Errorf("get pods %s: %q, want %q", test.args, got, test.want)
		}
	}
	if got := n.must(
		"get",
		"pods",
		"-n",
		"elsewhere",
	); got != "There are no pods in the namespace \"elsewhere\" on this node.\n" {
		t.Errorf("a namespace without pods: %q", got)
	}
	for _, test := range []struct{ args, want string }{
		{"-n kube-system hello-node-1", `there is no pod "kube-system/hello-node-1": there are begun-node-1,`},
		{"-n default kube-system/going-node-1", `is not in the namespace "default": leave out -n`},
	} {
		if _, _, err := n.run(
			append([]string{"get", "pods"}, strings.Fields(test.args)...)...); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("get pods %s: got %v, want %q", test.args, err, test.want)
		}
	}
}

func TestWatchPodsOfANamespace(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	n.putPods()
	r := n.start("get", "pods", "-w", "-n", "kube-system", "-o", "name")
	r.until(r.out, "pod/going-node-1\n")
	n.putPod(pod("default", "other-node-1", "main"), "file", syncing)
	n.putPod(pod("kube-system", "new-node-1", "main"), "file", syncing)
	r.until(r.out, "pod/new-node-1\n")
	if got := r.out.String(); got != "pod/going-node-1\npod/new-node-1\n" {
		t.Errorf("got %q, want %q", got, "pod/going-node-1\npod/new-node-1\n")
	}
}

// A change that shows only in a wide column causes no line in the narrow table.
func TestWatchPodsLeavesOutWhatNoColumnShows(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	p := pod("default", "hello-node-1", "main")
	n.putPod(p, "file", syncing)
	narrow, wide := n.start("get", "pods", "-w"), n.start("get", "pods", "-w", "-o", "wide")
	narrow.until(narrow.out, "hello-node-1")
	wide.until(wide.out, "10.88.0.7")
	p.Status.PodIP = "10.88.0.8"
	n.putPod(p, "file", syncing)
	wide.until(wide.out, "10.88.0.8")
	n.putPod(p, "file", terminating)
	narrow.until(narrow.out, "Terminating")
	if got := narrow.out.String(); strings.Count(got, "\n") != 3 {
		t.Errorf("want the header and two lines:\n%s", got)
	}
}

func TestLogsOfANamespace(t *testing.T) {
	n := newNode(t)
	n.serve(layout.PLEG)
	status := observed(
		"hello-node-1",
		&lifecyclev1.Container{Id: "c", Name: "web", State: exited, LogPath: logFile(t, line("stdout", "F", "default"))},
	)
	system := observed(
		"hello-node-1",
		&lifecyclev1.Container{Id: "d", Name: "web", State: exited, LogPath: logFile(t, line("stdout", "F", "system"))},
	)
	system.Namespace, system.Uid = "kube-system", "uid-kube-system-hello-node-1"
	n.pleg.set(status, system)
	for _, test := range []struct{ args, want string }{
		{"hello-node-1", "default\n"},
		{"-n default hello-node-1", "default\n"},
		{"-n kube-system hello-node-1", "system\n"},
		{"kube-system/hello-node-1", "system\n"},
	} {
		if got := n.must(append([]string{"logs"}, strings.Fields(test.args)...)...); got != test.want {
			t.Errorf("logs %s: %q, want %q", test.args, got, test.want)
		}
	}
	for _, test := range []struct{ args, want string }{
		{"-n elsewhere hello-node-1", `there is no pod "elsewhere/hello-node-1": there are hello-node-1, kube-system/hello-node-1`},
		{"-n default kube-system/hello-node-1", "leave out -n"},
		{"", "name a pod: quartet logs POD"},
		{"one two", "name one pod, not 2"},
	} {
		if _, _, err := n.run(
			append([]string{"logs"}, strings.Fields(test.args)...)...); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("logs %s: got %v, want %q", test.args, err, test.want)
		}
	}
}
