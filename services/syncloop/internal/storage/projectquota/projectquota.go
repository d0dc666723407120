// Package projectquota limits the size of directories by project quotas of ext4 and XFS: the files below a directory
// with a project ID count for that project, and the file system refuses writes beyond the project's limit. Package
// nodeclaims uses it for claims.
//
// It makes the system calls itself, because the libraries for quotas need cgo or run programs of the node. Both file
// systems understand the same calls, by the file descriptor of any directory of theirs (Linux 5.14).
package projectquota

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The project IDs of Pick: from firstID, numberOfIDs of them. Other programs count from lower ones: a kubelet from
// 1048577, runtimes from the project ID of their directory.
const (
	firstID     = 1 << 30
	numberOfIDs = 1 << 30
)

// maxTries bounds how many project IDs Pick looks at.
const maxTries = 1000

// bytesPerBlock is the unit of limits in system calls.
const bytesPerBlock = 1024

// FileSystem has the quotas of the file systems of this machine. Its zero value is ready.
type FileSystem struct {
	// Files are the files that give project IDs to names and directories; those of xfs_quota(8) if nil.
	Files []string
}

// Enforced returns nil if the file system of a directory enforces the limits of projects, and otherwise why it does
// not.
func (FileSystem) Enforced(dir string) error {
	return withDir(dir, func(fd int) error {
		flags, err := enforcement(fd)
		switch {
		case err == nil && flags&projectLimits != 0:
			return nil
		case err != nil && !errors.Is(err, unix.ENOSYS):
			return fmt.Errorf("the file system of %s does not tell about its quotas: %w", dir, err)
		case !kernelHasCalls():
			return errors.New("the kernel has no quotas, or is older than Linux 5.14")
		}
		var stat unix.Statfs_t
		if err := unix.Fstatfs(fd, &stat); err != nil {
			return fmt.Errorf("find out the kind of the file system of %s: %w", dir, err)
		}
		if stat.Type != unix.EXT4_SUPER_MAGIC && stat.Type != unix.XFS_SUPER_MAGIC {
			return fmt.Errorf("the file system of %s is neither ext4 nor XFS", dir)
		}
		return fmt.Errorf("the file system of %s is mounted without prjquota", dir)
	})
}

// Project returns the project ID of a directory that its new files get; 0 if they get none. It fails for a symbolic
// link.
func (FileSystem) Project(dir string) (id uint32, err error) {
	err = withDir(dir, func(fd int) error {
		attributes, err := getAttributes(fd)
		if err == nil && attributes.flags&inheritProject != 0 {
			id = attributes.project
		}
		return err
	})
	return id, err
}

// Assign gives a project ID to a new directory, and to what will be made in it.
func (FileSystem) Assign(dir string, id uint32) error {
	return withDir(dir, func(fd int) error {
		attributes, err := getAttributes(fd)
		if err != nil {
			return err
		}
		attributes.project = id
		attributes.flags |= inheritProject
		return setAttributes(fd, &attributes)
	})
}

// Limit sets how many bytes a project may have on the file system of a directory, rounded up to a KiB; 0 is no limit.
func (FileSystem) Limit(dir string, id uint32, bytes int64) error {
	blocks := uint64(max(bytes, 0)+bytesPerBlock-1) / bytesPerBlock
	return withDir(dir, func(fd int) error {
		project, err := getQuota(fd, id)
		if err != nil || project.hardBlocks == blocks && project.softBlocks == 0 {
			return err
		}
		return setLimit(fd, id, blocks)
	})
}

// Pick returns a project ID that nothing has on the file system of a directory, that is none of taken, and that no file
// of the node names. It begins with one that depends on the seed, so that two nodes on one file system do not pick the
// same at the same time.
func (f FileSystem) Pick(dir, seed string, taken map[uint32]bool) (id uint32, err error) {
	named, err := f.named()
	if err != nil {
		return 0, err
	}
	sum := sha256.Sum256([]byte(seed))
	begin := binary.BigEndian.Uint32(sum[:])
	err = withDir(dir, func(fd int) error {
		for i := range uint32(maxTries) {
			id = firstID + (begin+i)%numberOfIDs
			if taken[id] || named[id] {
				continue
			}
			project, err := getQuota(fd, id)
			if err != nil || project.isUnused() {
				return err
			}
		}
		return fmt.Errorf("%d project IDs from %d are in use", maxTries, id-maxTries+1)
	})
	return id, err
}

// named returns the project IDs that files of the node name: "name:ID" in projid(5), "ID:directory" in projects(5).
func (f FileSystem) named() (map[uint32]bool, error) {
	files := f.Files
	if files == nil {
		files = []string{"/etc/projid", "/etc/projects"}
	}
	named := map[uint32]bool{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find out which project IDs are in use: %w", err)
		}
		for line := range strings.Lines(string(content)) {
			for part := range strings.SplitSeq(line, ":") {
				if id, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32); err == nil {
					named[uint32(id)] = true
				}
			}
		}
	}
	return named, nil
}

// withDir calls a function with the open directory.
func withDir(dir string, do func(fd int) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return errors.Join(do(fd), unix.Close(fd))
}
