package volumeprojected_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// odd is a mounter with a failure.
type odd struct {
	*mount.FakeMounter
	tried  []string
	refuse string
	forget bool
}

func (o *odd) Mount(source, target, fstype string, options []string) error {
	o.tried = append(o.tried, strings.Join(options, ","))
	if o.refuse != "" && slices.Contains(options, o.refuse) {
		return &os.PathError{Op: "mount", Path: target, Err: unix.EINVAL}
	}
	if o.forget {
		return nil
	}
	return o.FakeMounter.Mount(source, target, fstype, options)
}

func TestWhereNoSwapIsNotKnownItIsMountedWithout(t *testing.T) {
	r := newRig(t)
	o := &odd{FakeMounter: mount.NewFakeMounter(nil), refuse: "noswap"}
	r.mounter = o
	r.restart()
	v := r.volume(secret("login"))
	r.objects.putSecret("login", false, "password", hidden)
	v.mustSetUp()
	if !slices.Equal(o.tried, []string{"mode=1777,noswap", "mode=1777"}) || r.swappable != 1 {
		t.Errorf("tried %q, and %d are said to be swapped out", o.tried, r.swappable)
	}
	o.refuse = "mode=1777"
	if err := v.tearDown(); err != nil {
		t.Fatal(err)
	}
	if err := v.setUp(); !errors.Is(err, unix.EINVAL) || r.swappable != 1 {
		t.Errorf("another option is refused: %v, and %d are said to be swapped out", err, r.swappable)
	}
}

func TestASecretIsNeverOnTheDisk(t *testing.T) {
	for name, test := range map[string]struct {
		mounter func(dir string) *odd
		want    string
	}{
		"nothing is mounted": {func(string) *odd { return &odd{FakeMounter: mount.NewFakeMounter(nil), forget: true} }, "nothing is mounted at DIR: secrets are not written to disk"},
		"a disk is mounted": {func(dir string) *odd {
			return &odd{
				FakeMounter: mount.NewFakeMounter([]mount.MountPoint{{Path: dir, Type: "tmpfs"}, {Path: dir, Type: "ext4"}}),
			}
		}, "ext4 is mounted at DIR, where a tmpfs is required for secrets; unmount it"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			v := r.volume(secret("login"))
			r.mounter = test.mounter(v.Dir)
			r.restart()
			r.objects.putSecret("login", false, "password", hidden)
			if err := v.setUp(); err == nil || err.Error() != strings.ReplaceAll(test.want, "DIR", v.Dir) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if entries, err := os.ReadDir(v.Dir); err != nil || len(entries) > 0 {
				t.Errorf("on the disk there is %v, %v, want none", entries, err)
			}
		})
	}
	// The directory below the mount must be empty too.
	r := newRig(t)
	v := r.volume(secret("login"))
	r.objects.putSecret("login", false, "password", hidden)
	v.mustSetUp()
	if err := (volumes.Machine{}).Unmount(v.Dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(v.Dir); err != nil || len(entries) > 0 {
		t.Errorf("below the mount there is %v, %v, want none", entries, err)
	}
	v.mustSetUp() // mounts again
	v.has("password", hidden)
}

// TestAVolumeThatIsFullOrReadOnlyKeepsWhatItHas checks an update without enough space: both versions must fit while one
// replaces the other.
func TestAVolumeThatIsFullOrReadOnlyKeepsWhatItHas(t *testing.T) {
	r := newRig(t)
	r.memory = 5 << 19
	r.restart()
	v := r.volume(secret("login"))
	old, fresh := strings.Repeat("o", 1<<20), strings.Repeat("n", 1<<20)
	r.objects.putSecret("login", false, "key", old)
	v.mustSetUp()
	r.objects.putSecret("login", false, "key", fresh)
	v.mustSetUp()
	v.has("key", fresh)

	r.objects.putSecret("login", false, "key", strings.Repeat("x", 2<<20))
	want := "write the files of " + v.Dir + `: write "key": no space left on device`
	for range 2 {
		if err := v.setUp(); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		v.has("key", fresh)
	}
	r.objects.putSecret("login", false, "key", old)
	v.mustSetUp() // the failed update left nothing that uses space
	v.has("key", old)

	if err := r.mounter.Mount("tmpfs", v.Dir, "tmpfs", []string{"remount", "ro"}); err != nil {
		t.Fatal(err)
	}
	r.objects.putSecret("login", false, "key", fresh)
	if err := v.setUp(); !errors.Is(err, unix.EROFS) {
		t.Errorf("of a read-only file system: %v", err)
	}
	v.has("key", old)
	if err := r.mounter.Mount("tmpfs", v.Dir, "tmpfs", []string{"remount", "rw"}); err != nil {
		t.Fatal(err)
	}
	v.mustSetUp()
	v.has("key", fresh)
}
