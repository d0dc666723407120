package statedir_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func TestADamagedFileIsSetAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file.json")
	var content struct{ Name string }
	notEmpty := func() error {
		if content.Name == "" {
			return errors.New("it has no name")
		}
		return nil
	}
	if err := statedir.LoadChecked(path, "", &content, notEmpty); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file LoadChecked() = %v, want %v", err, fs.ErrNotExist)
	}
	for _, text := range []string{"", "{", "\x00\x00", "{}", `{"Name": 1}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		content.Name = ""
		err := statedir.LoadChecked(path, "", &content, notEmpty)
		var damaged *statedir.DamagedError
		if !errors.As(err, &damaged) || damaged.Aside != path+".damaged" || !strings.Contains(err.Error(), damaged.Aside) {
			t.Errorf("with %q LoadChecked() = %v, want a DamagedError that names the new path", text, err)
		}
		if aside, err := os.ReadFile(path + ".damaged"); err != nil || string(aside) != text {
			t.Errorf("the damaged file has %q, %v, want %q", aside, err, text)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the damaged file %q is still in place: %v", text, err)
		}
	}
	if err := os.WriteFile(path, []byte(`{"Name": "a", "Later": true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := statedir.LoadChecked(path, "", &content, notEmpty); err != nil || content.Name != "a" {
		t.Errorf("of a good file with a field of a later version LoadChecked() = %v, and the name is %q, want %q", err, content.Name, "a")
	}
}

// TestAFileThatCannotBeReadStaysInItsPlace reads a file of which each read fails with an I/O error, as a failing disk
// does. Only a process that can do without the content sets it aside.
func TestAFileThatCannotBeReadStaysInItsPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.json")
	require.NoError(t, os.Symlink("/proc/self/mem", path))
	var content struct{ Name string }
	err := statedir.LoadChecked(path, "", &content, nil)
	if !statedir.IsUnreadable(err) || !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), path) {
		t.Errorf("LoadChecked() = %v, want an UnreadableError with the path and %v", err, unix.EIO)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 || left[0].Name() != "file.json" {
		t.Errorf("the directory has %v, %v, want the file alone", left, err)
	}
	var damaged *statedir.DamagedError
	if err := statedir.LoadCache(path, "", &content, nil); !errors.As(err, &damaged) || damaged.Aside != path+".damaged" {
		t.Errorf("LoadCache() = %v, want a DamagedError that names the new path", err)
	}
}

// TestAFileThatThisUserMayNotReadStaysAndNamesTheRemedy reads a file of root as another user.
func TestAFileThatThisUserMayNotReadStaysAndNamesTheRemedy(t *testing.T) {
	require.Root(t, "another user")
	path := filepath.Join(t.TempDir(), "file.json")
	require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
	read := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, and its user with it
		if err := unix.Setfsuid(65534); err != nil {
			read <- err
			return
		}
		read <- statedir.LoadChecked(path, "", &struct{}{}, nil)
	}()
	err := <-read
	if !statedir.IsUnreadable(err) || !errors.Is(err, fs.ErrPermission) ||
		!strings.Contains(err.Error(), "let the user of this process read it") {
		t.Errorf("LoadChecked() = %v, want an UnreadableError that says who has to read it", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// TestAReserveIsUsedOnceAndFilledAgain writes on a full disk, which takes the reserve, and again without it.
func TestAReserveIsUsedOnceAndFilledAgain(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(dir, "reserve")
	reserve, err := statedir.NewReserve(file)
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v, want %v", err, unix.ENOSPC)
	}
	write := func(size int) error {
		return reserve.Write(func() error {
			return statedir.WriteFileAtomic(filepath.Join(dir, "record"), make([]byte, size), 0o600)
		})
	}
	if err := write(100 << 10); err != nil {
		t.Errorf("with a reserve: %v", err)
	}
	if err := write(500 << 10); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("without a reserve: %v, want %v", err, unix.ENOSPC)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	clock, ended := clocktesting.NewFakeClock(time.Now()), make(chan error)
	go func() { ended <- reserve.Run(ctx, clock) }()
	eventually.That(t, "the reserve is filled again", func() bool {
		clock.Step(time.Minute)
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
