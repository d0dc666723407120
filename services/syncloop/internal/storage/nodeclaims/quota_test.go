package nodeclaims

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// memoryQuotas are quotas that nothing enforces, for file systems without quotas.
type memoryQuotas struct {
	// root is the directory of the claims.
	root string
	// off is why there are no quotas; nil if there are.
	off error
	// projects are project IDs by inode.
	projects map[uint64]uint32
	limits   map[uint32]int64
}

// Enforced implements quotas.
func (q *memoryQuotas) Enforced(string) error { return q.off }

// Project implements quotas.
func (q *memoryQuotas) Project(dir string) (uint32, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return 0, err
	}
	if !info.IsDir() {
		return 0, &os.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	return q.projects[info.Sys().(*syscall.Stat_t).Ino], nil
}

// Assign implements quotas.
func (q *memoryQuotas) Assign(dir string, id uint32) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if q.projects == nil {
		q.projects = map[uint64]uint32{}
	}
	q.projects[info.Sys().(*syscall.Stat_t).Ino] = id
	return nil
}

// Limit implements quotas.
func (q *memoryQuotas) Limit(_ string, id uint32, bytes int64) error {
	if q.limits == nil {
		q.limits = map[uint32]int64{}
	}
	if q.limits[id] = bytes; bytes == 0 {
		delete(q.limits, id)
	}
	return q.off
}

// Pick implements quotas.
func (q *memoryQuotas) Pick(_, _ string, taken map[uint32]bool) (uint32, error) {
	used := map[uint32]bool{}
	directories, err := filepath.Glob(filepath.Join(q.root, "*", "*"))
	if err != nil {
		return 0, err
	}
	hidden, err := filepath.Glob(filepath.Join(q.root, "*", ".*"))
	for _, dir := range append(directories, hidden...) {
		if id, err := q.Project(dir); err == nil {
			used[id] = true
		}
	}
	id := uint32(1)
	for taken[id] || used[id] || q.limits[id] > 0 {
		id++
	}
	return id, err
}

// sizeOf returns the annotations of a claim about its size.
func sizeOf(claim *v1.PersistentVolumeClaim) (enforced, why string) {
	return claim.Annotations[AnnotationSizeEnforced], claim.Annotations[AnnotationSizeNotEnforced]
}

func TestTheLimitOfAClaimIsItsSize(t *testing.T) {
	r := newRig(t)
	limits := &memoryQuotas{root: r.dir}
	r.quotas = limits
	r.next(nil)
	r.loaded()
	r.documents.set("a", "u1", "1Mi")
	r.documents.set("b", "u2", "3Mi")
	r.mount(pod("a", "a"))
	r.mount(pod("b", "b"))
	if len(limits.limits) != 2 || limits.limits[1] != 1<<20 || limits.limits[2] != 3<<20 {
		t.Errorf("the limits are %v", limits.limits)
	}
	// It grows while its pod runs.
	r.documents.set("a", "u1", "2Mi")
	r.settle()
	claim := r.List()[0].Claim
	if enforced, why := sizeOf(claim); limits.limits[1] != 2<<20 || enforced != "true" || why != "" ||
		claim.Status.Capacity.Storage().String() != "2Mi" {
		t.Errorf("the limits are %v, the claim %+v", limits.limits, claim)
	}
	// The next process knows the project, and repairs a limit that somebody has changed.
	limits.limits[1] = 7
	r.next(nil)
	if enforced, why := sizeOf(r.loaded().List()[0].Claim); enforced != "false" || why != errNotChecked.Error() {
		t.Errorf("before it is checked: %q, %q", enforced, why)
	}
	r.settle()
	if enforced, _ := sizeOf(r.List()[0].Claim); limits.limits[1] != 2<<20 || enforced != "true" {
		t.Errorf("the limits of the next process are %v, %q", limits.limits, enforced)
	}
	r.documents.set("a", "", "")
	r.end("a")
	r.settle()
	if len(limits.limits) != 1 {
		t.Errorf("after the removal the limits are %v", limits.limits)
	}
	// The content of the first claim still has its project.
	r.documents.set("c", "u3", "1Mi")
	r.mount(pod("c", "c"))
	if limits.limits[3] != 1<<20 {
		t.Errorf("with another claim the limits are %v", limits.limits)
	}
}

func TestAClaimSaysWhyItsSizeIsNotEnforced(t *testing.T) {
	r := newRig(t)
	limits := &memoryQuotas{root: r.dir}
	r.quotas = limits
	r.next(nil)
	r.loaded()
	for _, name := range []string{"there", "link", "replaced", "normal"} {
		r.documents.set(name, "u-"+name, "1Mi")
	}
	must(t, os.MkdirAll(filepath.Join(r.dir, namespace, "there"), 0o700))
	must(t, os.Symlink(t.TempDir(), filepath.Join(r.dir, namespace, "link")))
	check := func(name, want string) {
		t.Helper()
		claim, _, err := r.ask(pod(name, name))
		must(t, err)
		if enforced, why := sizeOf(claim); enforced != "false" || !strings.Contains(why, want) {
			t.Errorf("%s: %q, %q, want %q", name, enforced, why, want)
		}
	}
	check("there", errNoProject.Error())
	check("link", errNoProject.Error())
	dir := r.mount(pod("replaced", "replaced"))
	must(t, os.Rename(dir, dir+"-old"))
	must(t, os.Mkdir(dir, 0o700))
	check("replaced", "does not have the project ID 1")
	r.mount(pod("normal", "normal"))
	limits.off = errors.New("there are no quotas")
	check("normal", "there are no quotas")
	// A claim that is not made with a limit never gets one, because its content is not counted.
	r.documents.set("new", "u-new", "1Mi")
	check("new", "there are no quotas")
	limits.off = nil
	check("new", errNoProject.Error())
}

// A user's annotations do not replace the node's.
func TestTheAnnotationsAboutTheSizeAreTheNodes(t *testing.T) {
	r := newRig(t)
	r.quotas = &memoryQuotas{root: r.dir}
	r.next(nil)
	r.loaded()
	r.documents.set("data", "u1", "1Mi")
	r.documents.claims["data"].Annotations = map[string]string{AnnotationSizeEnforced: "no", AnnotationSizeNotEnforced: "why"}
	claim, _, err := r.ask(pod("a", "data"))
	must(t, err)
	if enforced, why := sizeOf(claim); enforced != "true" || why != "" {
		t.Errorf("got %q, %q", enforced, why)
	}
}

// A file system that fails leaves no directory without a limit.
func TestADirectoryIsNotMadeWithoutItsLimit(t *testing.T) {
	r := newRig(t)
	limits := &memoryQuotas{root: r.dir}
	r.quotas = limits
	broken := &dying{disk: r.folder(), left: 1}
	r.next(broken)
	r.loaded()
	r.documents.set("data", "u1", "1Mi")
	if _, _, err := r.ask(pod("a", "data")); !errors.Is(err, errDead) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, namespace, "data")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	broken.left = -1
	r.mount(pod("a", "data"))
	if limits.limits[1] != 1<<20 || len(limits.limits) != 1 {
		t.Errorf("the limits are %v", limits.limits)
	}
}
