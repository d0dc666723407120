package persistentvolumes_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/mount-utils"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
)

// server is a mounter of exports that has mounts in memory.
type server struct {
	mounts []mount.MountPoint
	// fail is the error of a mount, which then may be there or not.
	fail error
	// busy is the error of an unmount.
	busy error
}

func (s *server) MountSensitiveWithoutSystemd(source, target, fstype string, options, _ []string) error {
	if fstype != "nfs" {
		return errors.New("unknown type " + fstype)
	}
	s.mounts = append(s.mounts, mount.MountPoint{Device: source, Path: target, Opts: options})
	return s.fail
}

func (s *server) UnmountWithForce(target string, timeout time.Duration) error {
	if timeout != time.Minute {
		return errors.New("it would hang")
	}
	if s.busy == nil {
		s.mounts = slices.DeleteFunc(s.mounts, func(m mount.MountPoint) bool { return m.Path == target })
	}
	return s.busy
}

func (s *server) List() ([]mount.MountPoint, error) { return s.mounts, nil }

func nfsRequest(t *testing.T) persistentvolumes.Request {
	t.Helper()
	return persistentvolumes.Request{
		Volume: &v1.Volume{Name: "v"}, Dir: filepath.Join(t.TempDir(), "pv-1"),
		PV: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "files.example", Path: "/exp"}},
			MountOptions:           []string{"nfsvers=4.2", "hard"},
		}},
	}
}

func newNFS(t *testing.T) (*persistentvolumes.NFS, *server) {
	t.Helper()
	helper := filepath.Join(t.TempDir(), "mount.nfs")
	if err := os.WriteFile(helper, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &server{}
	return &persistentvolumes.NFS{Mounter: s, Helper: helper}, s
}

func TestAnExportIsMountedWithItsOptions(t *testing.T) {
	inline := func(server string, readOnly bool) func(*persistentvolumes.Request) {
		return func(r *persistentvolumes.Request) {
			r.PV = nil
			r.Volume.NFS = &v1.NFSVolumeSource{Server: server, Path: "/x", ReadOnly: readOnly}
		}
	}
	for want, change := range map[string]func(*persistentvolumes.Request){
		"files.example:/exp hard,nfsvers=4.2":    func(*persistentvolumes.Request) {},
		"files.example:/exp hard,nfsvers=4.2,ro": func(r *persistentvolumes.Request) { r.ReadOnly = true },
		"[fd00::1]:/x ro":                        inline("fd00::1", true),
		"10.0.0.1:/x ":                           inline("10.0.0.1", false),
	} {
		kind, s := newNFS(t)
		request := nfsRequest(t)
		change(&request)
		if kind.Inline(request.Volume) != (request.PV == nil) || request.PV != nil && !kind.Supports(request.PV) {
			t.Errorf("%s: it is of another kind", want)
		}
		for range 2 { // the second time it is there
			if path, err := kind.Mount(t.Context(), request); err != nil || path != request.Dir {
				t.Errorf("%s: at %q: %v, want %q", want, path, err, request.Dir)
			}
		}
		if len(s.mounts) != 1 || s.mounts[0].Device+" "+strings.Join(s.mounts[0].Opts, ",") != want {
			t.Errorf("%s: mounted are %v", want, s.mounts)
		}
		if err := kind.Unmount(t.Context(), request.Dir); err != nil || len(s.mounts) > 0 {
			t.Errorf("%s: s.mounts = %v, %v, want none", want, s.mounts, err)
		}
		if _, err := os.Lstat(request.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the directory is left: %v", want, err)
		}
		if err := kind.Unmount(t.Context(), request.Dir); err != nil {
			t.Errorf("%s: once more: %v", want, err)
		}
	}
}

func TestWithoutTheProgramsThePackageIsNamed(t *testing.T) {
	kind, s := newNFS(t)
	kind.Helper += ".none"
	_, err := kind.Mount(t.Context(), nfsRequest(t))
	if err == nil || !strings.Contains(err.Error(), "install the package nfs-common") {
		t.Error(err)
	}
	if len(s.mounts) > 0 {
		t.Errorf("mounted are %v, want none", s.mounts)
	}
}

// A failed mount leaves nothing mounted, and a mount that stays is not removed.
func TestAnExportIsNeverHalfRemoved(t *testing.T) {
	kind, s := newNFS(t)
	request := nfsRequest(t)
	s.fail = errors.New("the server says no")
	if _, err := kind.Mount(t.Context(), request); !errors.Is(err, s.fail) || len(s.mounts) > 0 {
		t.Errorf("Mount() error = %v, %v, want %v and none", err, s.mounts, s.fail)
	}
	s.fail, s.busy = nil, errors.New("it is busy")
	if _, err := kind.Mount(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := kind.Unmount(t.Context(), request.Dir); !errors.Is(err, s.busy) {
		t.Errorf("Unmount() error = %v, want %v", err, s.busy)
	}
	if _, err := os.Lstat(request.Dir); err != nil {
		t.Errorf("the mount point is gone: %v", err)
	}
}

// umount(8) has a helper that waits for the server, and that keeps its output open.
func TestAnUnmountWhoseHelperHangsIsEnded(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	script := "#!/bin/sh\necho $@ >>" + log + "\nsleep 600\necho awake >>" + log + "\n"
	if err := os.WriteFile(filepath.Join(dir, "umount"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	kind := persistentvolumes.NewNFS()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	const timeout = 100 * time.Millisecond
	// The first is gone from the mount table, the second is not.
	for target, forced := range map[string]bool{dir: false, "/proc": true} {
		if err := os.Truncate(log, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		err := kind.Mounter.UnmountWithForce(target, timeout)
		if errors.Is(err, context.DeadlineExceeded) != forced || err != nil && !forced {
			t.Errorf("%s: %v", target, err)
		}
		calls, err := os.ReadFile(log)
		if want := target + "\n"; err != nil || string(calls) != want && !forced || forced && string(calls) != want+"-f "+want {
			t.Errorf("%s: the calls are %q, %v", target, calls, err)
		}
	}
}
