package nodeclaims

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/projectquota"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/killpoint"
	"github.com/quartet-node/quartet/test/vm"
)

// quotaDisks are disks with the file systems that have project quotas.
var quotaDisks = map[string]vm.Disk{
	"ext4": {MiB: 64, Format: []string{"mkfs.ext4", "-q", "-O", "quota,project"}},
	"xfs":  {MiB: 512, Format: []string{"mkfs.xfs", "-q"}},
}

// variableRoot is set in the process that is killed.
const variableRoot = "NODECLAIMS_TEST_ROOT"

// newRealRig returns the claims of a node whose state directory is the mount of a disk.
func newRealRig(t *testing.T, root string) *rig {
	t.Helper()
	r := newRig(t)
	r.dir, r.pods, r.quotas = filepath.Join(root, "claims"), filepath.Join(root, "pods"), projectquota.FileSystem{}
	r.next(nil)
	return r
}

// onDisk calls a check with the mount of a disk.
func onDisk(t *testing.T, device, kind, options string, check func(t *testing.T, root string)) {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount(device, dir, kind, 0, options))
	check(t, dir)
	must(t, unix.Unmount(dir, 0))
}

func TestRealFileSystemsEnforceTheSizeOfClaims(t *testing.T) {
	machine := vm.Machine{
		Modules: []string{"quota_v2", "xfs"}, Disks: []vm.Disk{quotaDisks["ext4"], quotaDisks["xfs"]},
	}
	if os.Getenv(variableRoot) == "" && !vm.Inside(t, machine) {
		return
	}
	if root := os.Getenv(variableRoot); root != "" {
		liveOf(t, newRealRig(t, root))
		return
	}
	for device, kind := range map[string]string{"/dev/vda": "ext4", "/dev/vdb": "xfs"} {
		t.Run(kind, func(t *testing.T) {
			// Pods do not have this capability, with which ext4 does not limit a process.
			runtime.LockOSThread() // the thread ends with this goroutine
			must(t, dropCapability(unix.CAP_SYS_RESOURCE))
			onDisk(t, device, kind, "prjquota", checkSizes)
			onDisk(t, device, kind, "", checkUnlimited)
			if kind == "ext4" { // XFS has the same calls, and kills take long in a machine
				onDisk(t, device, kind, "prjquota", checkKills)
			}
		})
	}
}

// dropCapability drops a capability of this thread.
func dropCapability(capability int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	return unix.Capset(&header, &data[0])
}

// fill writes a file durably, as a pod does.
func fill(path string, mib int) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = file.Write(make([]byte, mib<<20))
	return errors.Join(err, file.Sync(), file.Close())
}

func isFull(err error) bool { return errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.ENOSPC) }

func checkSizes(t *testing.T, root string) {
	r := newRealRig(t, root).loaded()
	r.documents.set("a", "u1", "1Mi")
	r.documents.set("b", "u2", "8Mi")
	a, b := r.mount(pod("a", "a")), r.mount(pod("b", "b"))
	if err := fill(filepath.Join(a, "file"), 2); !isFull(err) {
		t.Errorf("a write beyond the size: %v", err)
	}
	must(t, fill(filepath.Join(b, "file"), 2))
	r.documents.set("a", "u1", "4Mi")
	if !r.settle() {
		t.Errorf("listed are %+v", r.List())
	}
	must(t, fill(filepath.Join(a, "file"), 2))
	r.next(nil)
	r.loaded().settle()
	claim := r.List()[0].Claim
	if enforced, why := sizeOf(claim); enforced != "true" || claim.Status.Capacity.Storage().String() != "4Mi" {
		t.Errorf("in the next process: %q, %q, %v", enforced, why, claim.Status.Capacity)
	}
	if err := fill(filepath.Join(a, "file"), 6); !isFull(err) {
		t.Errorf("a write beyond the size in the next process: %v", err)
	}
	projects := []uint32{r.records[key{namespace, "a"}].Project, r.records[key{namespace, "b"}].Project}
	if projects[0] == projects[1] {
		t.Errorf("both claims have the project %d", projects[0])
	}
	r.documents.set("a", "", "")
	r.documents.set("b", "", "")
	r.end("a")
	r.end("b")
	r.settle()
	must(t, r.disk.sweep(t.Context()))
	isGone(t, r, "u1", projects[0])
	isGone(t, r, "u2", projects[1])
}

// firstOf returns the project ID that a claim gets first.
func firstOf(t *testing.T, root, uid string) uint32 {
	t.Helper()
	id, err := projectquota.FileSystem{}.Pick(root, uid, nil)
	must(t, err)
	return id
}

// isGone checks that nothing is left of a claim on the disk, and that its project ID is free.
func isGone(t *testing.T, r *rig, uid string, id uint32) {
	t.Helper()
	if len(r.names()) != 0 {
		t.Errorf("left are %v", r.names())
	}
	// XFS counts a removed directory until its inode is free.
	eventually.That(t, "the project ID of "+uid+" is free", func() bool { return firstOf(t, r.dir, uid) == id })
}

func checkUnlimited(t *testing.T, root string) {
	r := newRealRig(t, root).loaded()
	r.documents.set("a", "u1", "1Mi")
	claim, _, err := r.ask(pod("a", "a"))
	must(t, err)
	if enforced, why := sizeOf(claim); enforced != "false" || !strings.HasSuffix(why, "is mounted without prjquota") {
		t.Errorf("got %q, %q", enforced, why)
	}
	must(t, fill(filepath.Join(r.mount(pod("a", "a")), "file"), 2))
	r.documents.set("a", "", "")
	r.end("a")
	r.settle()
	must(t, r.disk.sweep(t.Context()))
}

// liveOf is the life of a claim in the process that is killed.
func liveOf(t *testing.T, r *rig) {
	t.Helper()
	r.loaded()
	r.documents.set("a", "u1", "1Mi")
	r.mount(pod("a", "a"))
	r.documents.set("a", "u1", "4Mi")
	r.settle()
	r.documents.set("a", "", "")
	r.end("a")
	r.settle()
	must(t, r.disk.sweep(t.Context()))
}

// changesClaim matches the calls that change a claim, without those that prepare a rename or make it durable.
var changesClaim = regexp.MustCompile(`^(rename|remove|set .* of|mkdir .*/\.new$)`)

// checkKills kills a process before each system call that changes a claim in its life. In the next process the claim
// has its limit, and nothing is left of it when it is deleted.
func checkKills(t *testing.T, root string) {
	id := firstOf(t, root, "u1")
	calls := killedBefore(t, root, 0)
	takeOver(t, root, id)
	kills := 0
	for i, call := range calls {
		if !changesClaim.MatchString(call) || strings.Contains(call, " pods/") {
			continue
		}
		killedBefore(t, root, i+1)
		takeOver(t, root, id)
		if t.Failed() {
			t.Fatalf("that was after a kill before call %d of\n%s", i+1, strings.Join(calls, "\n"))
		}
		kills++
	}
	if kills < 10 {
		t.Errorf("there were %d kills before calls of\n%s", kills, strings.Join(calls, "\n"))
	}
}

// killedBefore runs the life of a claim in a process that is killed before its nth call; 0 is never.
func killedBefore(t *testing.T, root string, n int) (calls []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestRealFileSystemsEnforceTheSizeOfClaims$")
	cmd.Env = append(os.Environ(), variableRoot+"="+root)
	tracer := &killpoint.Tracer{Root: root, Kill: n}
	if status := tracer.Run(t, cmd); status.Signaled() != (n > 0) {
		t.Fatalf("before call %d the process ended with %#x after\n%s", n, status, strings.Join(tracer.Calls, "\n"))
	}
	return tracer.Calls
}

// takeOver is the next process after a kill.
func takeOver(t *testing.T, root string, id uint32) {
	t.Helper()
	r := newRealRig(t, root).loaded()
	r.documents.set("a", "u1", "2Mi")
	claim, err := r.usable(pod("b", "a"))
	must(t, err)
	dir := r.mount(pod("b", "a"))
	if enforced, why := sizeOf(claim); enforced != "true" {
		t.Errorf("the size is enforced: %q, %q", enforced, why)
	}
	must(t, fill(filepath.Join(dir, "file"), 1))
	if err := fill(filepath.Join(dir, "file"), 3); !isFull(err) {
		t.Errorf("a write beyond the size: %v", err)
	}
	r.documents.set("a", "", "")
	r.end("a")
	r.end("b")
	r.settle()
	must(t, r.disk.sweep(t.Context()))
	isGone(t, r, "u1", id)
}

// usable asks for a claim, again after its deletion if it is being deleted.
func (r *rig) usable(p *v1.Pod) (*v1.PersistentVolumeClaim, error) {
	claim, _, err := r.ask(p)
	if errors.Is(err, errDeleting) {
		r.end("a")
		r.settle()
		claim, _, err = r.ask(p)
	}
	return claim, err
}
