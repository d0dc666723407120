package nodeclaims

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAClaimIsADirectoryThatOutlivesItsPods(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	r := newRig(t).loaded()
	r.documents.set("data", "u1", "1Gi")
	claim, pv, err := r.ask(pod("a", "data"))
	must(t, err)
	dir := filepath.Join(r.dir, namespace, "data")
	if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o777 || pv.Spec.Local.Path != dir {
		t.Errorf("the directory of %v is %v, %v, want Mode %v and Path %v", pv.Spec.Local, info, err, os.ModeDir|0o777, dir)
	}
	if claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName != "pvc-u1" || pv.Name != "pvc-u1" ||
		pv.Spec.ClaimRef.UID != "u1" || claim.Status.Capacity.Storage().String() != "1Gi" ||
		pv.Spec.Capacity.Storage().String() != "1Gi" || pv.Status.Phase != v1.VolumeBound {
		t.Errorf("the claim is %+v, the volume %+v", claim, pv)
	}
	r.mount(pod("a", "data"))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("1"), 0o600))
	users := []string{"shop/pod-a"}
	if all := r.List(); len(all) != 1 || all[0].Claim.DeletionTimestamp != nil || !slices.Equal(all[0].UsedBy, users) {
		t.Errorf("listed are %+v", all)
	}
	r.end("a")
	r.settle()
	r.documents.set("data", "u1", "2Gi")
	r.next(nil)
	r.loaded().settle()
	if claim, _, err = r.ask(pod("b", "data")); err != nil || claim.Status.Capacity.Storage().String() != "2Gi" {
		t.Errorf("with another size: %v, %v", claim, err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(content) != "1" {
		t.Errorf("the next pod reads %q, %v, want %q", content, err, "1")
	}
	if !slices.Equal(r.names(), []string{".u1.json", "data"}) {
		t.Errorf("there are %v, want %v", r.names(), []string{".u1.json", "data"})
	}
}

func TestADeletedClaimStaysUntilItsLastPodEnds(t *testing.T) {
	r := newRig(t).loaded()
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "theirs"), nil, 0o600))
	r.documents.set("data", "u1", "1Gi")
	dir := r.mount(pod("a", "data"))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	r.documents.set("data", "", "")
	if !r.settle() || r.List()[0].Claim.DeletionTimestamp == nil {
		t.Errorf("a claim in use: %+v", r.List())
	}
	for _, uid := range []string{"", "u2"} { // deleted, and made again
		if r.documents.set("data", uid, "1Gi"); uid == "" {
			r.next(nil) // the next process knows it from the disk
			r.loaded()
		}
		if _, _, err := r.ask(pod("b", "data")); !errors.Is(err, errDeleting) {
			t.Errorf("another pod, document %q: %v", uid, err)
		}
		if claim, _, err := r.ask(pod("a", "data")); err != nil || claim.UID != "u1" {
			t.Errorf("its pod, document %q: %v, %v, want UID %q", uid, claim, err, "u1")
		}
		r.settle()
	}
	r.isTold("b")
	r.end("a")
	if !r.settle() || !r.isTold("b") {
		t.Error("the pod that waits is not notified")
	}
	must(t, r.disk.sweep(t.Context()))
	if len(r.names()) != 0 {
		t.Errorf("left are %v", r.names())
	}
	if _, err := os.Stat(filepath.Join(outside, "theirs")); err != nil {
		t.Errorf("the removal has followed a link: %v", err)
	}
	dir = r.mount(pod("b", "data"))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the new claim has %v, %v, want none", entries, err)
	}
}

// A claim of a manifest keeps its UID when it is deleted and written again.
func TestAClaimThatComesBackWithItsUIDStartsEmpty(t *testing.T) {
	r := newRig(t).loaded()
	r.documents.set("data", "u1", "1Gi")
	dir := r.mount(pod("a", "data"))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	r.documents.set("data", "", "")
	r.settle()
	r.documents.set("data", "u1", "1Gi")
	if _, _, err := r.ask(pod("b", "data")); !errors.Is(err, errDeleting) {
		t.Errorf("while it is being deleted: %v, want %v", err, errDeleting)
	}
	r.end("a")
	r.settle()
	if entries, err := os.ReadDir(r.mount(pod("b", "data"))); err != nil || len(entries) != 0 {
		t.Errorf("it has %v, %v, want none", entries, err)
	}
}

// The directory of a claim may be a link that the operator has made. Its target is theirs.
func TestOfALinkedClaimOnlyTheLinkIsRemoved(t *testing.T) {
	r := newRig(t).loaded()
	theirs := t.TempDir()
	must(t, os.WriteFile(filepath.Join(theirs, "file"), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(r.dir, namespace), 0o700))
	must(t, os.Symlink(theirs, filepath.Join(r.dir, namespace, "data")))
	r.documents.set("data", "u1", "1Gi")
	dir := r.mount(pod("a", "data"))
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
		t.Error(err)
	}
	r.end("a")
	r.documents.set("data", "", "")
	r.settle()
	must(t, r.disk.sweep(t.Context()))
	if _, err := os.Stat(filepath.Join(theirs, "file")); err != nil || len(r.names()) != 0 {
		t.Errorf("there are %v; the target: %v, want none", r.names(), err)
	}
}

func TestNothingIsRemovedWhileItIsUncertain(t *testing.T) {
	r := newRig(t).loaded()
	r.documents.set("data", "u1", "1Gi")
	r.mount(pod("a", "data"))
	r.end("a")
	r.documents.set("data", "", "")
	r.documents.setUnread(away)
	if !r.settle() || r.List()[0].Claim.DeletionTimestamp != nil {
		t.Errorf("while configmux is away: %+v", r.List())
	}
	if _, _, err := r.ask(pod("b", "data")); err != nil {
		t.Errorf("a claim that was there before: %v", err)
	}
	if _, _, err := r.ask(pod("b", "none")); err == nil || err.Error() != away {
		t.Errorf("one that was not: %v", err)
	}
	r.end("b")
	// Until the source local is read, a claim of a manifest may have another UID.
	r.documents.set("data", "u2", "1Gi")
	r.documents.setUnread("the source is not read")
	if _, _, err := r.ask(pod("b", "data")); err == nil || !strings.Contains(err.Error(), "not known yet: the source is not read") {
		t.Errorf("another UID: %v", err)
	}
	if !r.settle() || r.List()[0].Claim.DeletionTimestamp != nil {
		t.Errorf("with another UID: %+v", r.List())
	}
	r.end("b")
	r.documents.set("data", "", "")
	r.documents.setUnread("")
	r.settle()
	if len(r.List()) != 0 {
		t.Errorf("when it is certain: %+v, want none", r.List())
	}
	if _, _, err := r.ask(pod("b", "data")); err == nil || !strings.Contains(err.Error(), `"data" not found: apply it`) {
		t.Errorf("no claim: %v", err)
	}
}

func TestOnlyOnePodUsesAnExclusiveClaim(t *testing.T) {
	r := newRig(t).loaded()
	r.documents.set("data", "u1", "1Gi", v1.ReadWriteOncePod)
	r.mount(pod("a", "data"))
	for _, process := range []string{"the same", "the next"} {
		if _, _, err := r.ask(pod("b", "data")); !errors.As(err, new(*volumes.InUseError)) {
			t.Errorf("another pod, %s process: %v", process, err)
		}
		r.next(nil)
		r.loaded()
	}
	if _, _, err := r.ask(pod("b", "data")); !errors.As(err, new(*volumes.InUseError)) {
		t.Errorf("another pod, the last process: %v", err)
	}
	r.isTold("b")
	r.Use(pod("a", "data"))
	r.end("a")
	if !r.isTold("b") {
		t.Error("the pod that waits is not notified")
	}
	if _, _, err := r.ask(pod("b", "data")); err != nil {
		t.Error(err)
	}
}

func TestTheClaimOfAnEphemeralVolumeIsDeletedWithItsPod(t *testing.T) {
	r := newRig(t).loaded()
	claim, pv, err := r.ask(ephemeral("a"))
	must(t, err)
	if claim.Name != "pod-v" || claim.Labels["a"] != "b" || claim.OwnerReferences[0].UID != "a" || len(claim.UID) != 36 {
		t.Errorf("the claim is %+v", claim)
	}
	dir := r.mount(ephemeral("a"))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	r.next(nil)
	if r.loaded().settle(); len(r.List()) != 1 || r.List()[0].Claim.DeletionTimestamp != nil {
		t.Errorf("a mounted one, before its pod is known: %+v", r.List())
	}
	if _, again, err := r.ask(ephemeral("a")); err != nil || again.Name != pv.Name {
		t.Errorf("after a restart: %v, %v", again, err)
	}
	if _, _, err := r.ask(ephemeral("b")); err == nil || !strings.Contains(err.Error(), "was not created for pod shop/pod (pod is not owner)") {
		t.Errorf("the next pod of the name: %v", err)
	}
	if _, _, err := r.ask(pod("c", "pod-v")); err == nil || !strings.Contains(err.Error(), "ephemeral volume of another pod") {
		t.Errorf("a pod that names it: %v", err)
	}
	r.end("a")
	if !r.settle() || !r.isTold("b") || len(r.List()) != 0 {
		t.Errorf("it is left: %+v", r.List())
	}
	if entries, err := os.ReadDir(r.mount(ephemeral("b"))); err != nil || len(entries) != 0 {
		t.Errorf("that of the next pod has %v, %v, want none", entries, err)
	}
	r.end("b")
	r.settle()
	r.documents.set("pod-v", "u1", "1Gi")
	if _, _, err := r.ask(ephemeral("d")); err == nil || !strings.Contains(err.Error(), "pod is not owner") {
		t.Errorf("with a document of the name: %v", err)
	}
}

func TestADamagedRecordConcernsNoOtherClaim(t *testing.T) {
	r := newRig(t).loaded()
	r.documents.set("a", "u1", "1Gi")
	r.documents.set("b", "u2", "1Gi")
	file := filepath.Join(r.mount(pod("a", "a")), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	r.mount(pod("b", "b"))
	must(t, os.WriteFile(filepath.Join(r.dir, namespace, ".u1.json"), []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(r.dir, "file"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(r.dir, namespace, unfinishedName), 0o700))
	r.next(nil)
	r.loaded().settle()
	if list := r.List(); len(list) != 1 || list[0].Claim.Name != "b" {
		t.Errorf("listed are %+v, want exactly one and list[0].Claim.Name %q", list, "b")
	}
	r.mount(pod("c", "a"))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the content is gone: %v", err)
	}
}

// The data of a claim with a mount in it are not removed until it is unmounted, and the name of the claim is free.
func TestWhatIsMountedInAClaimStays(t *testing.T) {
	r := newRig(t).loaded()
	r.documents.set("data", "u1", "1Gi")
	dir := r.mount(pod("a", "data"))
	theirs := t.TempDir()
	must(t, os.WriteFile(filepath.Join(theirs, "file"), nil, 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "mnt"), 0o700))
	require.NoError(t, syscall.Mount(theirs, filepath.Join(dir, "mnt"), "", syscall.MS_BIND, ""))
	r.end("a")
	r.documents.set("data", "", "")
	r.settle()
	moved, err := filepath.Glob(filepath.Join(r.dir, namespace, removedPrefix+"*"))
	if err != nil || len(moved) != 1 {
		t.Fatalf("moved are %v, %v, want exactly one", moved, err)
	}
	if err := r.disk.sweep(t.Context()); err == nil || !strings.Contains(err.Error(), "is a mount point") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(theirs, "file")); err != nil {
		t.Error(err)
	}
	must(t, syscall.Unmount(filepath.Join(moved[0], "mnt"), 0))
	must(t, r.disk.sweep(t.Context()))
	if len(r.names()) != 0 {
		t.Errorf("left are %v", r.names())
	}
}

// Run makes, notifies, removes and sweeps by itself.
func TestRunFollowsTheDocuments(t *testing.T) {
	r := newRig(t)
	r.documents.set("data", "u1", "1Gi")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx, r.documents) }()
	p := pod("a", "data")
	r.Use(p)
	_, pv, err := r.Claim(ctx, p, &p.Spec.Volumes[0])
	must(t, err)
	if _, _, err := r.Claim(ctx, p, &v1.Volume{Name: "other"}); err == nil {
		t.Error("a volume without a claim has one")
	}
	r.documents.set("data", "", "")
	r.Check()
	eventually.That(t, "the claim is terminating", func() bool { return len(r.List()) == 1 && r.List()[0].Claim.DeletionTimestamp != nil })
	r.Forget(p.UID)
	eventually.That(t, "everything is removed", func() bool { return len(r.List()) == 0 && len(r.names()) == 0 })
	if _, err := os.Stat(pv.Spec.Local.Path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, _, err := r.Claim(t.Context(), p, &p.Spec.Volumes[0]); !errors.Is(err, errEnded) {
		t.Errorf("after the end: %v", err)
	}
}

// A removal that fails is retried, and says why in the list.
func TestARemovalThatFailsIsRetried(t *testing.T) {
	r := newRig(t)
	r.documents.set("data", "u1", "1Gi")
	broken := &dying{disk: r.folder(), left: -1}
	r.next(broken)
	r.loaded()
	r.mount(pod("a", "data"))
	r.end("a")
	r.documents.set("data", "", "")
	broken.left = 0
	if r.settle() || r.List()[0].Problem != errDead.Error() {
		t.Errorf("listed are %+v", r.List())
	}
	broken.left = -1
	if !r.settle() || len(r.List()) != 0 {
		t.Errorf("listed are %+v", r.List())
	}
}

func TestNamesAreThoseOfDirectories(t *testing.T) {
	r := newRig(t).loaded()
	for _, uid := range []string{"../up", ".hidden", "a/b"} {
		r.documents.set("data", uid, "1Gi")
		if _, _, err := r.ask(pod("a", "data")); err == nil || !strings.Contains(err.Error(), "invalid name") {
			t.Errorf("%q: %v", uid, err)
		}
	}
	if len(r.names()) != 0 || r.isTold(types.UID("a")) {
		t.Errorf("there are %v", r.names())
	}
}

// TestAClaimOfAnotherNamespaceIsNotGiven names claims of the same name, and by a path.
func TestAClaimOfAnotherNamespaceIsNotGiven(t *testing.T) {
	r := newRig(t).loaded()
	r.documents.set("data", "u1", "1Gi")
	if _, _, err := r.ask(pod("a", "data")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data", "../shop/data", "shop/data"} {
		theirs := pod("b", name)
		theirs.Namespace = "other"
		if _, pv, err := r.ask(theirs); err == nil || !strings.Contains(err.Error(), "not found: apply it") {
			t.Errorf("%s: got %v, %v", name, pv, err)
		}
	}
	if all := r.List(); len(all) != 1 || len(all[0].UsedBy) != 1 {
		t.Errorf("listed are %+v, want one claim with one user", all)
	}
}
