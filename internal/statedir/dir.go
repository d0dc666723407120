package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// OpenDir returns the entries of a directory of records, which it makes if it is not there. What is no directory is set
// aside. It returns the entries that it could read also with an error.
func OpenDir(dir string) ([]fs.DirEntry, error) {
	var aside error
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		aside = SetAside(dir, unix.ENOTDIR)
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, errors.Join(aside, err)
	}
	entries, err := os.ReadDir(dir)
	return entries, errors.Join(aside, err)
}

// WriteIn calls a function that writes into a directory of records, and calls it again after the directory was made if
// it is missing, for example because the disk was full at the start.
func WriteIn(dir string, write func() error) error {
	err := write()
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := OpenDir(dir); err != nil {
		return err
	}
	return write()
}

// IsReadOnly reports whether a directory is on a file system that is mounted read-only, or that an error has made
// read-only.
func IsReadOnly(dir string) bool {
	var stat unix.Statfs_t
	if unix.Statfs(dir, &stat) == nil && stat.Flags&unix.ST_RDONLY != 0 {
		return true
	}
	var file unix.Stat_t
	if unix.Stat(dir, &file) != nil {
		return false
	}
	// The first mount of the disk is enough, since all have its options. With many pods the table is long.
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		onDisk := unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == file.Dev //nolint:gosec // numbers of the kernel
		return !onDisk, onDisk
	})
	return err == nil && slices.ContainsFunc(mounts, HasFailed)
}

// HasFailed reports whether the file system of a mount is read-only since an error. Since Linux 6.15 ext4 shows that
// only by an option of the file system: the mount, statfs and access say that it can be written.
func HasFailed(mount *mountinfo.Info) bool {
	return slices.Contains(strings.Split(mount.VFSOptions, ","), "emergency_ro")
}

// informationLimit is how long a process waits for a write that it does not need. A healthy disk takes milliseconds.
const informationLimit = 2 * time.Second

// ErrHangs is the error of Inform and of reads on a disk that does not answer.
var ErrHangs = errors.New("the disk does not answer; it is not waited for")

// Inform calls a function that writes what its process does not need, and returns its error. It waits for 2 s: then the
// function goes on alone, until the disk answers or the process ends. It must not use what its caller closes.
func Inform(write func() error) error {
	done := make(chan error, 1)
	go func() { done <- write() }()
	timer := time.NewTimer(informationLimit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return ErrHangs
	}
}

// Writer writes one file that is only information, as Inform does, for a caller that writes it again and again. Writes
// are in order: while one hangs, only the latest of those after it is kept. The zero value is ready for use.
type Writer struct {
	mu sync.Mutex
	// busy is true while a goroutine writes, and next is what it writes after that; nil for nothing.
	busy bool
	next func() error
}

// Write calls a function that writes, and returns its error, or ErrHangs.
func (w *Writer) Write(write func() error) error {
	w.mu.Lock()
	if w.busy {
		w.next = write
		w.mu.Unlock()
		return ErrHangs
	}
	w.busy = true
	w.mu.Unlock()
	return Inform(func() error {
		err := write()
		if !w.another() {
			return err
		}
		go w.rest()
		return err
	})
}

// rest writes what came while a write hung.
func (w *Writer) rest() {
	for {
		w.mu.Lock()
		write := w.next
		w.next = nil
		w.mu.Unlock()
		_ = write() // its caller was told that the disk hangs
		if !w.another() {
			return
		}
	}
}

// another reports whether there is something to write; if not, the next call of Write writes.
func (w *Writer) another() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = w.next != nil
	return w.busy
}

// asideTries bounds the number of names that Rename tries.
const asideTries = 10

// asideOf returns the new name of a damaged file. Only a file replaces a file: anything else in the way stays, because
// this process has not made it.
func asideOf(path string) string {
	aside := path + damagedSuffix
	damaged, err := os.Lstat(path)
	isFile := err == nil && damaged.Mode().IsRegular()
	for i := 1; i < asideTries; i++ {
		there, err := os.Lstat(aside)
		if err != nil || (isFile && there.Mode().IsRegular()) {
			break
		}
		aside = fmt.Sprintf("%s.%d%s", path, i, damagedSuffix)
	}
	return aside
}
