// Package fsgroup gives the content of a volume to the group of a pod (fsGroup), as the kubelet does. The owner stays,
// the group may read and, unless the volume is read-only, write everything, and new files of a directory belong to it.
package fsgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// The permissions of the group.
const (
	readWrite = fs.FileMode(0o660)
	readOnly  = fs.FileMode(0o440)
	search    = fs.FileMode(0o110)
)

// The kubelet's times of the first report of a change that takes long, and between further ones.
const (
	firstReport = 30 * time.Second
	nextReports = time.Minute
)

// Monitor reports changes that take long.
type Monitor struct {
	// Clock is the clock. Required.
	Clock clock.PassiveClock
	// Warn receives the reports, in the kubelet's words. Required.
	Warn func(message string)
	// Volume names the volume in the reports.
	Volume string

	// next is the time of the next report, files the number of changed files and directories.
	next     time.Time
	files    int
	reported bool
}

// EventSlow is the reason of the kubelet's event for a change that takes long.
const EventSlow = "VolumePermissionChangeInProgress"

// Operation is the kubelet's name of a change in metrics.
const Operation = "volume_apply_access_control"

// VolumeOf returns how the kubelet names a directory of a pod in reports: from the pod's UID on.
func VolumeOf(dir string, pod types.UID) string {
	if i := strings.Index(dir, string(pod)); i >= 0 {
		return dir[i:]
	}
	return dir
}

// begin starts the time of the first report.
func (m *Monitor) begin() { m.next = m.Clock.Now().Add(firstReport) }

// changed counts a file or directory, and reports if it is time to.
func (m *Monitor) changed() {
	m.files++
	now := m.Clock.Now()
	if now.Before(m.next) {
		return
	}
	message := fmt.Sprintf("Setting volume ownership for %s, processed %d files.", m.Volume, m.files)
	if !m.reported {
		message = fmt.Sprintf("Setting volume ownership for %s is taking longer than expected, consider using OnRootMismatch "+
			"- https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"+
			"#configure-volume-permission-and-ownership-change-policy-for-pods", m.Volume)
	}
	m.reported, m.next = true, now.Add(nextReports)
	m.Warn(message)
}

// Apply gives everything in a directory to a group. With the policy OnRootMismatch it does nothing if the directory
// itself belongs to the group with the right permissions. It crosses no symbolic link, so that a container that uses
// the volume cannot direct it elsewhere. It ends early with the error of ctx.
func Apply(
	ctx context.Context, dir string, group int64, isReadOnly bool, policy *v1.PodFSGroupChangePolicy, monitor *Monitor,
) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	info, err := root.Stat(".")
	if err != nil {
		return errors.Join(err, root.Close())
	}
	if policy != nil && *policy == v1.FSGroupChangeOnRootMismatch && matches(info, group, isReadOnly) {
		return root.Close()
	}
	monitor.begin()
	c := changer{group: int(group), permissions: readWrite, monitor: monitor}
	if isReadOnly {
		c.permissions = readOnly
	}
	return c.tree(ctx, root, info)
}

// matches reports whether a directory belongs to the group with the right permissions.
func matches(info fs.FileInfo, group int64, isReadOnly bool) bool {
	permissions := readWrite | search
	if isReadOnly {
		permissions = readOnly | search
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(stat.Gid) == group && info.Mode()&permissions == permissions && info.Mode()&fs.ModeSetgid != 0
}

// changer changes owners.
type changer struct {
	group       int
	permissions fs.FileMode
	monitor     *Monitor
}

// tree changes a directory and what is in it: the directory last, so that OnRootMismatch finds an incomplete change. It
// closes the directory.
func (c changer) tree(ctx context.Context, dir *os.Root, info fs.FileInfo) (err error) {
	defer func() { err = errors.Join(err, dir.Close()) }()
	list, err := dir.Open(".")
	if err != nil {
		return err
	}
	entries, err := list.ReadDir(-1)
	if err = errors.Join(err, list.Close()); err != nil {
		return err
	}
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.entry(ctx, dir, entry.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return c.one(dir, ".", info)
}

// entry changes an entry of a directory. One that is removed meanwhile gives fs.ErrNotExist.
func (c changer) entry(ctx context.Context, dir *os.Root, name string) error {
	info, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return c.one(dir, name, info)
	}
	below, err := dir.OpenRoot(name)
	if err != nil {
		return err
	}
	return c.tree(ctx, below, info)
}

// one changes the group and the permissions of a file or directory. Links have no permissions.
func (c changer) one(dir *os.Root, name string, info fs.FileInfo) error {
	c.monitor.changed()
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Gid) != c.group {
		if err := dir.Lchown(name, -1, c.group); err != nil {
			return fmt.Errorf("give it to the group %d: %w", c.group, err)
		}
	}
	permissions := c.permissions
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return nil
	case info.IsDir():
		permissions |= search | fs.ModeSetgid
	}
	mode := info.Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	// The kernel takes these bits from a file whose group changes.
	bits := fs.ModeSetuid | fs.ModeSetgid
	if mode|permissions == mode && (info.IsDir() || mode&bits == 0) {
		return nil
	}
	if err := dir.Chmod(name, mode|permissions); err != nil {
		return fmt.Errorf("let the group %d use it: %w", c.group, err)
	}
	return nil
}
