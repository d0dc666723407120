package loop_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// onlyFiles gives the machine's processes and privileged containers to the source file alone.
func onlyFiles(cfg *loop.Config) {
	cfg.Privileges.HostPID, cfg.Privileges.Privileged = []string{"file"}, nil
}

// addOf adds a pod of a source, or changes it.
func (r *rig) addOf(source string, pod *v1.Pod) {
	r.config.Put(string(pod.UID), &loop.Desired{Pod: pod, Source: source})
}

// privilegedPod returns a version of a pod whose container is privileged.
func privilegedPod(uid, name string) *v1.Pod {
	pod, yes := fakenode.Pod(uid, name, always), true
	pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: &yes}
	return pod
}

// TestAPodWithAPrivilegeThatItsSourceMayNotGiveIsRefused, although configmux sends it.
func TestAPodWithAPrivilegeThatItsSourceMayNotGiveIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, fakenode.New(), t.TempDir(), 0, onlyFiles)
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		for uid, source := range map[string]string{"of-file": "file", "of-api": "api", "of-nothing": ""} {
			pod := fakenode.Pod(uid, uid, always)
			pod.Spec.HostPID = true
			r.addOf(source, pod)
		}
		r.addOf("file", privilegedPod("strong", "strong"))
		r.pass(time.Minute)
		if got := r.node.Running(); !slices.Equal(got, []string{"of-file"}) {
			t.Errorf("%q run, want only of-file", got)
		}
		for uid, want := range map[string]string{
			"of-api": `spec.hostPID: Forbidden: a pod of the source "api" must not see the machine's processes`,
			"strong": `spec.containers[0].securityContext.privileged: Forbidden: a pod of the source "file" must not`,
		} {
			if !r.failed(uid, "HostPrivilegeForbidden") || !strings.Contains(r.pod(uid).Status.Message, want) {
				t.Errorf("%s has the status %+v, want a rejection with %q", uid, r.pod(uid).Status, want)
			}
		}
		if calls := r.node.Calls(); slices.ContainsFunc(calls, func(c string) bool { return strings.Contains(c, "strong") }) {
			t.Errorf("the runtime was called for a pod that is refused: %q", calls)
		}
		// A refused pod that its source does not name any more is forgotten.
		r.config.Delete("strong")
		r.eventually("strong is gone", func() bool { return r.pod("strong").Name == "" })
	})
}

// TestARunningPodEndsWhenItIsChangedToOneWithAPrivilege: the change is never given to the worker.
func TestARunningPodEndsWhenItIsChangedToOneWithAPrivilege(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, fakenode.New(), t.TempDir(), 0, onlyFiles)
		r.source("file", true)
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.addOf("api", fakenode.Pod("u1", "web", always))
		r.eventually("web runs", r.runs("web"))
		r.addOf("api", privilegedPod("u1", "web"))
		r.eventually("web has ended", r.runs())
		r.eventually("web is Failed", func() bool { return r.failed("u1", "HostPrivilegeForbidden") })
		r.pass(5 * time.Minute)
		if got := r.node.Running(); len(got) > 0 {
			t.Errorf("%q run again", got)
		}
		r.config.Delete("u1")
		r.eventually("web is gone", func() bool { return len(r.node.UIDs()) == 0 && r.pod("u1").Name == "" })
	})
}

// TestAPodOfAnEarlierProcessEndsWhenItsPrivilegeIsNotAllowedAnyMore: the flags have become stricter.
func TestAPodOfAnEarlierProcessEndsWhenItsPrivilegeIsNotAllowedAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := fakenode.New()
		node.Run(privilegedPod("u1", "strong"))
		node.Run(fakenode.Pod("u2", "web", always))
		r := newRigWith(t, node, t.TempDir(), 0, func(cfg *loop.Config) { cfg.Privileges = privilege.Allowed{} })
		r.source("file", true)
		r.addOf("file", privilegedPod("u1", "strong"))
		r.addOf("file", fakenode.Pod("u2", "web", always))
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.eventually("only web runs", r.runs("web"))
		r.eventually("strong is Failed", func() bool { return r.failed("u1", "HostPrivilegeForbidden") })
	})
}
