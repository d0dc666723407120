package vmnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/nfsserver"
)

// export is the directory that the machine's NFS server exports.
const export = "/export"

// placeNFS places a pod that mounts the export, with more fields of its volume, and the arguments of its container.
func (n *node) placeNFS(name, more, args string) {
	n.t.Helper()
	n.place(name, hosted+"volumes: [{name: shared, nfs: {server: 127.0.0.1, path: /"+more+"}}]\n",
		"args: "+args+"\nvolumeMounts: [{name: shared, mountPath: /shared}]\n")
}

// inShared returns the path of a file of the export as a pod's container has it.
func (n *node) inShared(pod, file string) string {
	return fmt.Sprintf("/proc/%d/root/shared/%s", n.process(pod), file)
}

// nfsMounts returns the mounts of the export below the root directory, with their IDs, by pod.
func (n *node) nfsMounts() map[string]int {
	n.t.Helper()
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "nfs4" || !strings.HasPrefix(m.Mountpoint, n.Layout.Root()+"/"), false
	})
	if err != nil {
		n.t.Fatal(err)
	}
	found := map[string]int{}
	for _, m := range mounts {
		uid, _, _ := strings.Cut(strings.TrimPrefix(m.Mountpoint, filepath.Join(n.Layout.Root(), "pods")+"/"), "/")
		found[uid] = m.ID
	}
	return found
}

// testNFS shares the export of a server between two pods. They keep their mounts when syncloop is killed. While the
// server does not answer, a pod waits for it, and another one does not. Nothing is left of the pods in the end.
func testNFS(n *node) {
	server, err := nfsserver.Start(export)
	if err != nil {
		n.t.Fatal(err)
	}
	const reader = "[serve, -addr, \"127.0.0.1:8090\", -page, /shared/page]"
	n.placeNFS("writer", "", "[sleep]")
	n.placeNFS("reader", ", readOnly: true", reader)
	writer, pages := n.ready("writer"), n.ready("reader")
	n.isShared("before")
	if err := os.WriteFile(n.inShared("reader", "page"), nil, 0o600); err == nil {
		n.t.Error("a volume with readOnly can be written")
	}

	mounts := n.nfsMounts()
	if len(mounts) != 2 {
		n.t.Errorf("the mounts are %v, want one of each pod", mounts)
	}
	n.killSyncloop()
	n.ready("writer")
	n.ready("reader")
	n.isShared("after")
	if now := n.nfsMounts(); fmt.Sprint(now) != fmt.Sprint(mounts) {
		n.t.Errorf("after a kill of syncloop the mounts are %v, had been %v", now, mounts)
	}
	for name, before := range map[string]*v1.Pod{"writer": writer, "reader": pages} {
		if status(n.find(name)).ContainerID != status(before).ContainerID {
			n.t.Errorf("the container of %s was restarted", name)
		}
	}

	n.waitForServer(server)
	for _, name := range []string{"writer", "reader", "late", "beside"} {
		if err := n.TakeAway(name + ".yaml"); err != nil {
			n.t.Fatal(err)
		}
	}
	n.await("the export is mounted nowhere", func() bool { return len(n.nfsMounts()) == 0 })
	n.await("the pods have ended", func() bool {
		names, err := n.Names(n.t.Context())
		return err == nil && !strings.Contains(names, "writer") && !strings.Contains(names, "reader") &&
			!strings.Contains(names, "late") && !strings.Contains(names, "beside")
	})
	if content, err := os.ReadFile(filepath.Join(export, "page")); err != nil || string(content) != "after" {
		n.t.Errorf("without its pods the export has %q, %v", content, err)
	}
	if err := server.Stop(); err != nil {
		n.t.Error(err)
	}
}

// isShared writes a page by the one pod and requests it from the other one.
func (n *node) isShared(page string) {
	n.t.Helper()
	if err := writeDurably(n.inShared("writer", "page"), page); err != nil {
		n.t.Fatal(err)
	}
	n.await("the reader has the page", func() bool {
		got, err := n.fetch("http://127.0.0.1:8090/")
		return err == nil && strings.Contains(string(got), page)
	})
}

// waitForServer stops the server. A new pod with the export waits for it, a new pod without it is Ready meanwhile.
func (n *node) waitForServer(server nfsserver.Server) {
	n.t.Helper()
	if err := server.Stop(); err != nil {
		n.t.Fatal(err)
	}
	n.placeNFS("late", "", "[sleep]")
	n.place("beside", hosted, bestEffort)
	n.ready("beside")
	var text string
	eventually.Wait{Patience: patience, Interval: interval, State: func() string { return text }}.That(
		n.t, "the description of the pod says what it waits for", func() bool {
			late := n.find("late")
			if late == nil {
				return false
			}
			var err error
			text, err = n.Command(n.t.Context(), "describe", "pod", late.Namespace+"/"+late.Name)
			return err == nil && strings.Contains(text, "NFS server of 127.0.0.1:/\n")
		})
	n.t.Logf("%s", text)
	if err := server.Resume(); err != nil {
		n.t.Fatal(err)
	}
	n.ready("late")
	if content, err := os.ReadFile(n.inShared("late", "page")); err != nil || string(content) != "after" {
		n.t.Error(errors.Join(fmt.Errorf("the late pod has %q", content), err))
	}
}
