package projectquota

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/fs.h: how a directory's project ID is read and set.
const (
	getAttributesCall = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributesCall = 0x401c5820 // FS_IOC_FSSETXATTR
	inheritProject    = 0x200      // FS_XFLAG_PROJINHERIT
)

// From linux/quota.h and linux/dqblk_xfs.h: the calls about quotas. The lowest byte is the kind of quota.
const (
	projects         = 2                      // PRJQUOTA
	getQuotaCall     = 0x800007<<8 | projects // Q_GETQUOTA
	setQuotaCall     = 0x800008<<8 | projects // Q_SETQUOTA
	getStateCall     = 0x5805<<8 | projects   // Q_XGETQSTAT
	validBlockLimits = 1                      // QIF_BLIMITS
	projectLimits    = 1 << 5                 // FS_QUOTA_PDQ_ENFD
)

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// quota is struct if_dqblk.
type quota struct {
	hardBlocks, softBlocks uint64
	space                  uint64
	hardInodes, softInodes uint64
	inodes                 uint64
	blockGrace, inodeGrace uint64
	valid                  uint32
	_                      uint32
}

// isUnused reports whether nothing has the project, and nothing limits it.
func (q quota) isUnused() bool {
	return q.hardBlocks|q.softBlocks|q.hardInodes|q.softInodes == 0 && q.space|q.inodes == 0
}

// state begins as struct fs_quota_stat, which is shorter.
type state struct {
	version int8
	flags   uint16
	_       [124]byte
}

// ioctl calls ioctl(2) for the attributes of a file.
func ioctl(fd int, request uintptr, a *attributes) error {
	//nolint:gosec // the kernel reads and writes the struct
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(a)))
	if errno != 0 {
		return errno
	}
	return nil
}

// quotactl calls quotactl_fd(2) with the address of the struct of the call.
func quotactl(fd int, call uintptr, id uint32, address unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), call, uintptr(id), uintptr(address), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func getAttributes(fd int) (attributes, error) {
	var a attributes
	if err := ioctl(fd, getAttributesCall, &a); err != nil {
		return a, fmt.Errorf("read the project ID: %w", err)
	}
	return a, nil
}

func setAttributes(fd int, a *attributes) error {
	if err := ioctl(fd, setAttributesCall, a); err != nil {
		return fmt.Errorf("set the project ID %d: %w", a.project, err)
	}
	return nil
}

// getQuota returns what is known about a project. XFS does not know one that nothing has.
func getQuota(fd int, id uint32) (quota, error) {
	var q quota
	err := quotactl(fd, getQuotaCall, id, unsafe.Pointer(&q)) //nolint:gosec // the kernel reads or writes it
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return q, fmt.Errorf("read the quota of the project %d: %w", id, err)
	}
	return q, nil
}

// setLimit sets the hard limit of a project, without a soft one.
func setLimit(fd int, id uint32, blocks uint64) error {
	q := quota{hardBlocks: blocks, valid: validBlockLimits}
	if err := quotactl(fd, setQuotaCall, id, unsafe.Pointer(&q)); err != nil { //nolint:gosec // the kernel reads it
		return fmt.Errorf("set the quota of the project %d: %w", id, err)
	}
	return nil
}

// enforcement returns which quotas a file system counts and enforces.
func enforcement(fd int) (flags uint16, err error) {
	var s state
	err = quotactl(fd, getStateCall, 0, unsafe.Pointer(&s)) //nolint:gosec // the kernel reads or writes it
	return s.flags, err
}

// kernelHasCalls reports whether the kernel has the calls for any file system.
func kernelHasCalls() bool {
	return !errors.Is(quotactl(-1, getStateCall, 0, nil), unix.ENOSYS)
}
