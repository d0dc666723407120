package show

import (
	"errors"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// Every command accepts the name in the manifest, without the node's name behind it.
func TestAPodIsNamedAsItsManifestNamesIt(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	n.serve(layout.PLEG)
	n.putPods()
	n.pleg.set(
		observed(
			"hello-node-1",
			&lifecyclev1.Container{Id: "c", Name: "web", State: exited, LogPath: logFile(t, line("stdout", "F", "written"))},
		),
	)
	for _, test := range []struct{ args, want string }{
		{"get pods -o name hello", "pod/hello-node-1\n"},
		{"get pods -o name kube-system/going", "pod/going-node-1\n"},
		{"get pods -o name -n kube-system going", "pod/going-node-1\n"},
		{"get pods -o name uid-kube-system-going-node-1", "pod/going-node-1\n"},
		{"logs -c web uid-default-hello-node-1", "written\n"},
		{"logs -c web hello", "written\n"},
	} {
		if got := n.must(strings.Fields(test.args)...); got != test.want {
			t.Errorf("%s: %q, want %q", test.args, got, test.want)
		}
	}
	r := n.start("get", "pods", "-w", "-o", "name", "hello")
	r.until(r.out, "pod/hello-node-1\n")
	// A pod whose full name matches takes precedence.
	n.putPod(pod("default", "hello", "main"), "file", syncing)
	if got := n.must("get", "pods", "-o", "name", "hello"); got != "pod/hello\n" {
		t.Errorf("with a pod of that very name: %q, want %q", got, "pod/hello\n")
	}
}

func TestLocate(t *testing.T) {
	n := newNode(t)
	if _, err := Locate(
		t.Context(),
		target.Node{StateDir: n.stateDir},
		"",
		"hello",
	); err == nil ||
		!strings.Contains(err.Error(), "is the node running?") {
		t.Errorf("without a node: %v", err)
	}
	stop := n.serve(layout.PLEG)
	n.pleg.set(observed("hello-node-1"))
	_, err := Locate(t.Context(), target.Node{StateDir: n.stateDir}, "", "nobody")
	if err == nil || errors.As(err, new(*NoPodError)) {
		t.Errorf("pleg does not know it, syncloop is away and may: got %v, want no verdict", err)
	}
	n.serve(layout.SyncLoop)
	n.putPods()
	if _, err = Locate(
		t.Context(),
		target.Node{StateDir: n.stateDir},
		"",
		"nobody",
	); !errors.As(err, new(*NoPodError)) ||
		!strings.Contains(err.Error(), "hello-node-1") {
		t.Errorf("got %v, want that there is no such pod, and which there are", err)
	}
	pod, err := Locate(t.Context(), target.Node{StateDir: n.stateDir}, "", "hello")
	if err != nil || pod.Name != "hello-node-1" || pod.UID != "uid-default-hello-node-1" ||
		pod.Status.GetName() != "hello-node-1" {
		t.Errorf("Locate(hello) = %+v, %v, want Name %q, UID %q and Status.Name %q",
			pod, err, "hello-node-1", "uid-default-hello-node-1", "hello-node-1")
	}
	stop()
	pod, err = Locate(t.Context(), target.Node{StateDir: n.stateDir}, "kube-system", "going-node-1")
	if err != nil || pod.Namespace != "kube-system" || pod.Status != nil {
		t.Errorf("pleg is away: got %+v, %v", pod, err)
	}
}
