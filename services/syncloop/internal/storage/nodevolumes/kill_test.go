package nodevolumes

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/csidriver"
)

// errKilled is returned for every step on disk after the kill.
var errKilled = errors.New("the process is killed")

// mortal is a disk that is killed before a step.
type mortal struct {
	folder

	// left is the number of steps before the kill.
	left *int
}

func (m mortal) step(take func() error) error {
	if *m.left--; *m.left < 0 {
		return errKilled
	}
	return take()
}

func (m mortal) save(name string, r *record) error {
	return m.step(func() error { return m.folder.save(name, r) })
}

func (m mortal) release(name string) error {
	return m.step(func() error { return m.folder.release(name) })
}
func (m mortal) forget(name string) error {
	return m.step(func() error { return m.folder.forget(name) })
}

// live uses a claim, lets it grow, and deletes it. It returns why it did not come to its end.
func (r *rig) live() error {
	c, larger := claim("u1", "1Mi"), claim("u1", "2Mi")
	volume, err := r.Provide(r.t.Context(), c)
	if err != nil {
		return err
	}
	r.use(volume.PV, true)
	if _, err := r.Attachment(r.t.Context(), driverName, volume.PV.Spec.CSI.VolumeHandle); err != nil {
		return err
	}
	if volume, err = r.Provide(r.t.Context(), larger); err != nil {
		return err
	}
	if err := r.steps(); err != nil {
		return err
	}
	larger.Spec.VolumeName = volume.PV.Name
	size := larger.Spec.Resources.Requests[v1.ResourceStorage]
	if _, err := r.MarkExpanded(r.t.Context(), larger, size); err != nil {
		return err
	}
	r.use(volume.PV, false)
	if err := r.Release("u1"); err != nil {
		return err
	}
	return r.steps()
}

// Whatever step a process is killed before, the next one has the same volume, and in the end nothing is left.
func TestAKillNeitherLeaksAVolumeNorMakesItTwice(t *testing.T) {
	for steps := range 20 {
		r := newRig(t)
		left := steps
		r.next(mortal{folder{dir: r.dir, logger: r.cfg.Logger}, &left})
		killed := r.live()
		if volumes := r.inDriver(); len(volumes) > 1 {
			t.Errorf("killed before step %d: the driver has %q", steps, volumes)
		}
		r.next(nil)
		// The claim may be forgotten already, because its release is on disk.
		if len(r.Released()) == 0 && killed != nil {
			must(t, r.live())
		}
		must(t, r.steps())
		equal(t, "volumes of the driver", r.inDriver(), nil)
		equal(t, "records", r.onDisk(), nil)
		if killed == nil {
			if steps < 7 {
				t.Errorf("there are %d steps only", steps)
			}
			return
		}
	}
}

// A lost answer or the death of the driver at any call is no other: the call is made again.
func TestALostAnswerLeavesNothing(t *testing.T) {
	for _, method := range []string{
		"CreateVolume", "ControllerPublishVolume", "ControllerExpandVolume", "ControllerUnpublishVolume", "DeleteVolume",
	} {
		r := newRig(t)
		r.cfg.Timeout = 200 * time.Millisecond
		r.next(nil)
		r.driver.Set(method, csidriver.Loses)
		if r.live() == nil {
			t.Errorf("%s: the answer is not lost", method)
		}
		r.driver.Set(method, csidriver.None)
		r.cfg.Timeout = 30 * time.Second
		r.next(nil)
		r.set(func(w *world) { clear(w.used) })
		if len(r.Released()) == 0 {
			must(t, r.live())
		}
		must(t, r.steps())
		equal(t, method+": volumes of the driver", r.inDriver(), nil)
		equal(t, method+": records", r.onDisk(), nil)
	}
}

// A volume whose claim is deleted while its creation has no answer is made and deleted by the next process.
func TestAVolumeWithoutAnAnswerIsDeleted(t *testing.T) {
	r := newRig(t)
	r.driver.Set("CreateVolume", csidriver.Loses)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := r.Provide(ctx, claim("u1", "1Mi")); err == nil {
		t.Error("the answer is not lost")
	}
	equal(t, "volumes of the driver", r.inDriver(), []string{"pvc-u1"})
	r.driver.Set("CreateVolume", csidriver.None)
	r.next(nil)
	must(t, r.Release("u1"))
	must(t, r.steps())
	equal(t, "volumes of the driver", r.inDriver(), nil)
	equal(t, "records", r.onDisk(), nil)
}

func TestNoStepOfAVolumeInUseTakesItAway(t *testing.T) {
	bools := []bool{false, true}
	for _, inUse := range bools {
		for _, released := range bools {
			for _, retained := range bools {
				for _, attached := range bools {
					for _, grows := range bools {
						s := state{made, grows, released, retained, attached, inUse, grows}
						got := next(s)
						if got == begin || inUse && (got == detach || got == remove) ||
							got == remove && (!released || retained || attached) ||
							got == detach && !attached || got == expand && released || got == finish {
							t.Errorf("%+v: step %d", s, got)
						}
					}
				}
			}
		}
	}
	if next(state{phase: asked}) != stay || next(state{phase: asked, isReleased: true}) != finish ||
		next(state{phase: asked, isImmediate: true}) != begin || next(state{isImmediate: true}) != begin ||
		next(state{}) != stay {
		t.Error("a volume that is being made is made by who wants it, or by Run if its claim was deleted")
	}
}
