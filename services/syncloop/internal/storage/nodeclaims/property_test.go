package nodeclaims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// errDead is returned by the disk of a killed process.
var errDead = errors.New("the process is dead")

// dying is a disk whose process dies after some steps, possibly in the middle of one.
type dying struct {
	disk

	// left is the number of steps until the death; negative for none.
	left int
}

// step reports whether the process still lives for a step.
func (d *dying) step() error {
	if d.left == 0 {
		return errDead
	}
	d.left--
	return nil
}

func (d *dying) save(k key, r *record) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.disk.save(k, r)
}

func (d *dying) make(k key, project uint32) error {
	if err := d.step(); err != nil {
		// It dies between the two steps of folder.make.
		return errors.Join(err, os.MkdirAll(filepath.Join(filepath.Dir(d.path(k)), unfinishedName), 0o700))
	}
	return d.disk.make(k, project)
}

func (d *dying) limit(project uint32, bytes int64) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.disk.limit(project, bytes)
}

func (d *dying) moveAway(k key) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.disk.moveAway(k)
}

func (d *dying) forget(k key, uid types.UID) error {
	if err := d.step(); err != nil {
		return err
	}
	return d.disk.forget(k, uid)
}

func (d *dying) sweep(ctx context.Context) error {
	if err := d.step(); err != nil {
		// It dies when a file is removed.
		some, _ := filepath.Glob(filepath.Join(d.path(key{namespace, removedPrefix + "*"}), "*"))
		for _, path := range some[:min(len(some), 1)] {
			_ = os.Remove(path)
		}
		return err
	}
	return d.disk.sweep(ctx)
}

// world is what the property test knows about the node.
type world struct {
	*rapid.T
	*rig

	disk *dying
	// uids are the UIDs of the documents by name.
	uids map[string]string
	// made counts the claims, for their UIDs and for the names of pods.
	made int
	// tokens are the contents by UID.
	tokens map[string]string
	// mounted are the pods that use a claim, with its name and content.
	mounted map[types.UID][2]string
	outside string
	limits  *memoryQuotas
}

// For any sequence of claims, pods, absences of configmux and kills, between and in the middle of the steps on disk,
// the content of a claim is there as long as the claim or a pod that uses it, and limited to the claim's size; a claim
// that was deleted and made again starts empty; and in the end nothing is left of a deleted claim, and nothing else is
// gone.
func TestContentIsThatOfItsClaim(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		r.t = rt
		limits := &memoryQuotas{root: r.dir}
		r.quotas = limits
		w := &world{
			T: rt, rig: r, uids: map[string]string{}, tokens: map[string]string{}, mounted: map[types.UID][2]string{},
			outside: t.TempDir(), limits: limits,
		}
		theirs := filepath.Join(w.outside, "theirs")
		if err := os.WriteFile(theirs, nil, 0o600); err != nil {
			rt.Fatal(err)
		}
		w.revive()
		rt.Repeat(map[string]func(*rapid.T){
			"apply": w.apply, "delete": w.remove, "start": w.start, "end": w.endOne, "settle": w.settleAll,
			"kill":  func(rt *rapid.T) { w.disk.left = rapid.IntRange(0, 6).Draw(rt, "steps") },
			"away":  func(rt *rapid.T) { w.documents.setUnread(rapid.SampledFrom([]string{"", away}).Draw(rt, "why")) },
			"sweep": func(*rapid.T) { w.notice(w.disk.sweep(context.Background())) },
			"":      func(*rapid.T) { w.check() },
		})
		w.documents.setUnread("")
		w.disk.left = -1
		for uid := range w.mounted {
			w.end(uid)
			delete(w.mounted, uid)
		}
		for range 2 {
			w.settleAll(rt)
			w.notice(w.disk.sweep(context.Background()))
		}
		w.finally()
		if _, err := os.Stat(theirs); err != nil {
			rt.Fatal(err)
		}
	})
}

// revive starts the next process, in which the pods that use a claim come back.
func (w *world) revive() {
	w.disk = &dying{disk: w.folder(), left: -1}
	w.next(w.disk)
	w.loaded()
	for _, uid := range slices.Sorted(maps.Keys(w.mounted)) {
		name := w.mounted[uid][0]
		w.settle()
		if _, _, err := w.ask(pod(string(uid), name)); err != nil {
			w.Fatalf("pod %s has lost %s: %v", uid, name, err)
		}
	}
}

// notice starts the next process if a step has failed, because this one is dead.
func (w *world) notice(err error) {
	if w.disk.left == 0 || errors.Is(err, errDead) {
		w.revive()
	} else if err != nil {
		w.Fatal(err)
	}
}

func (w *world) apply(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")
	if w.uids[name] == "" {
		w.made++
		w.uids[name] = fmt.Sprint("u", w.made)
	}
	w.documents.set(name, w.uids[name], rapid.SampledFrom([]string{"1Gi", "2Gi"}).Draw(rt, "size"))
}

func (w *world) remove(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")
	w.uids[name] = ""
	w.documents.set(name, "", "")
}

func (w *world) settleAll(*rapid.T) {
	if !w.settle() {
		w.notice(errDead)
	}
}

// start starts a pod, which writes a token into an empty claim.
func (w *world) start(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")
	w.made++
	p := pod(fmt.Sprint("p", w.made), name)
	claim, pv, err := w.ask(p)
	if errors.Is(err, errDead) {
		w.Forget(p.UID)
		w.notice(err)
		return
	}
	if err != nil {
		w.Forget(p.UID)
		return // for example because an earlier claim is being deleted
	}
	if !w.documents.hidden && string(claim.UID) != w.uids[name] {
		w.Fatalf("a pod has got the claim %s, want %q", claim.UID, w.uids[name])
	}
	w.use(p, claim, pv, name)
}

// use lets a pod use a claim that it has got.
func (w *world) use(p *v1.Pod, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, name string) {
	if err := os.MkdirAll(w.volume(p.UID, pv), 0o750); err != nil {
		w.Fatal(err)
	}
	uid := string(claim.UID)
	content, err := os.ReadFile(filepath.Join(pv.Spec.Local.Path, "token"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	if string(content) != w.tokens[uid] {
		w.Fatalf("claim %s has the content %q, want %q", uid, content, w.tokens[uid])
	}
	if len(content) == 0 {
		w.tokens[uid] = "token of " + uid
		err := errors.Join(os.WriteFile(filepath.Join(pv.Spec.Local.Path, "token"), []byte(w.tokens[uid]), 0o600),
			os.Symlink(w.outside, filepath.Join(pv.Spec.Local.Path, "link")))
		if err != nil {
			w.Fatal(err)
		}
	}
	w.mounted[p.UID] = [2]string{name, w.tokens[uid]}
}

func (w *world) endOne(rt *rapid.T) {
	if len(w.mounted) == 0 {
		return
	}
	uid := rapid.SampledFrom(slices.Sorted(maps.Keys(w.mounted))).Draw(rt, "pod")
	delete(w.mounted, uid)
	w.end(uid)
}

// check checks that what a pod uses is there.
func (w *world) check() {
	for uid, used := range w.mounted {
		content, err := os.ReadFile(filepath.Join(w.dir, namespace, used[0], "token"))
		if err != nil || string(content) != used[1] {
			w.Fatalf("pod %s has %q, %v; want %q", uid, content, err, used[1])
		}
	}
	w.checkLimits()
}

// checkLimits checks that the directory of each claim that is known as limited has a limit of its own of the right
// size.
func (w *world) checkLimits() {
	owners := map[uint32]string{}
	for _, s := range w.List() {
		project, err := w.limits.Project(w.disk.path(key{namespace, s.Claim.Name}))
		if s.Claim.Annotations[AnnotationSizeEnforced] != "true" || err != nil {
			continue
		}
		if other := owners[project]; project == 0 || other != "" {
			w.Fatalf("%s has the project %d of %q", s.Claim.Name, project, other)
		}
		owners[project] = s.Claim.Name
		if size := s.Claim.Status.Capacity.Storage().Value(); w.limits.limits[project] != size {
			w.Fatalf("%s has the limit %d, want %d", s.Claim.Name, w.limits.limits[project], size)
		}
	}
}

// finally checks that what there is is that of the claims.
func (w *world) finally() {
	projects := map[uint32]bool{}
	for k, r := range w.records {
		if r.unenforced != nil && !errors.Is(r.unenforced, os.ErrNotExist) {
			w.Fatalf("the size of %s is not enforced: %v", k, r.unenforced)
		}
		projects[r.Project] = true
	}
	for project := range w.limits.limits {
		if !projects[project] {
			w.Fatalf("the limit of the project %d is left", project)
		}
	}
	want := []string{}
	for name, uid := range w.uids {
		if uid != "" && w.tokens[uid] != "" {
			want = append(want, name, "."+uid+recordExtension)
		}
	}
	got := slices.DeleteFunc(w.names(), func(name string) bool {
		// A claim that was made and whose first pod was killed before it wrote anything.
		return slices.ContainsFunc(slices.Collect(maps.Keys(w.uids)), func(n string) bool {
			uid := w.uids[n]
			return uid != "" && w.tokens[uid] == "" && (name == n || name == "."+uid+recordExtension || name == unfinishedName)
		})
	})
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Fatalf("there are %v, want %v", got, want)
	}
}
