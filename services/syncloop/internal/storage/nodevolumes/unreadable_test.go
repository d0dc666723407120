package nodevolumes

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestARecordThatCannotBeReadIsNotReplaced has each read of a record fail with an I/O error.
func TestARecordThatCannotBeReadIsNotReplaced(t *testing.T) {
	f := folder{dir: t.TempDir(), logger: slog.New(slog.DiscardHandler)}
	file := filepath.Join(f.dir, "pvc-u1.json")
	if err := os.Symlink("/proc/self/mem", file); err != nil { // of which no read succeeds
		t.Fatal(err)
	}
	if all, err := f.load(); err != nil || len(all) > 0 {
		t.Errorf("load() = %v, %v, want nothing", all, err)
	}
	if err := f.save("pvc-u1", &record{}); !errors.Is(err, unix.EIO) {
		t.Errorf("save() = %v, want %v", err, unix.EIO)
	}
	if info, err := os.Lstat(file); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the record was replaced: %v, %v", info, err)
	}
}

// unlistedDisk is a disk whose directory cannot be listed while err is set.
type unlistedDisk struct {
	disk

	err error
	// hang is what a list waits for; nil for nothing.
	hang chan struct{}
}

func (d *unlistedDisk) load() (map[string]stored, error) {
	if d.hang != nil {
		<-d.hang
	}
	if d.err != nil {
		return nil, d.err
	}
	return d.disk.load()
}

// TestNoVolumeIsForgottenWhileTheRecordsCannotBeListed: meanwhile nothing is made or deleted, and claims are told why
// they wait. Then each claim has the volume that it had, and one that had none gets one.
func TestNoVolumeIsForgottenWhileTheRecordsCannotBeListed(t *testing.T) {
	r := newRig(t)
	has, waits := claim("has", "2Mi"), claim("waits", "2Mi")
	made := r.provide(has)
	d := &unlistedDisk{disk: folder{dir: r.dir, logger: r.cfg.Logger}, err: unix.EIO}
	r.next(d)
	if _, err := r.Provide(t.Context(), has); !errors.Is(err, unix.EIO) {
		t.Errorf("Provide() = %v, want %v", err, unix.EIO)
	}
	r.Begin(waits)
	r.Begin(has)
	source := made.PV.Spec.CSI
	if _, err := r.Attachment(t.Context(), source.Driver, source.VolumeHandle); !errors.Is(err, unix.EIO) {
		t.Errorf("Attachment() = %v, want %v", err, unix.EIO)
	}
	if err := r.Release(has.UID); !errors.Is(err, unix.EIO) {
		t.Errorf("Release() = %v, want %v", err, unix.EIO)
	}
	if _, _, err := r.Forget(t.Context(), made.PV.Name); !errors.Is(err, unix.EIO) {
		t.Errorf("Forget() = %v, want %v", err, unix.EIO)
	}
	if known := r.Known("another"); !errors.Is(known.Problem, unix.EIO) {
		t.Errorf("Known() = %+v, want %v", known, unix.EIO)
	}
	if r.reload() || r.Unread() == nil {
		t.Error("the records were read")
	}
	equal(t, "the driver has", r.inDriver(), []string{source.VolumeHandle})
	d.err = nil
	r.run()
	eventually.That(t, "both have a volume", func() bool { return r.Known(has.UID).PV != nil && r.Known(waits.UID).PV != nil })
	if got := r.Known(has.UID).PV; got.Spec.CSI.VolumeHandle != source.VolumeHandle {
		t.Errorf("the claim has the volume %s, had %s", got.Spec.CSI.VolumeHandle, source.VolumeHandle)
	}
	if err := r.Unread(); err != nil {
		t.Error(err)
	}
}

// TestADiskThatHangsDelaysNoStart: the process serves, and has the records when the disk answers.
func TestADiskThatHangsDelaysNoStart(t *testing.T) {
	r := newRig(t)
	has := claim("has", "2Mi")
	r.provide(has)
	d := &unlistedDisk{disk: folder{dir: r.dir, logger: r.cfg.Logger}, hang: make(chan struct{})}
	r.next(d)
	if err := r.Unread(); !errors.Is(err, statedir.ErrHangs) {
		t.Errorf("Unread() = %v, want %v", err, statedir.ErrHangs)
	}
	close(d.hang)
	r.run()
	eventually.That(t, "the records are known", func() bool { return r.Unread() == nil && r.Known(has.UID).PV != nil })
}
