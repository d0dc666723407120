package volumes

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// noSwap is the option of a tmpfs that is never swapped.
const noSwap = "noswap"

// Unswapped is a Mounter of file systems in memory that are never swapped, if the kernel supports that: since Linux
// 6.4, outside of a user namespace. Otherwise it mounts without that option, as the kubelet does.
type Unswapped struct {
	Mounter
	// Swappable is called for each mount without the option; it may be nil.
	Swappable func()
}

// Mount implements Mounter.
func (u Unswapped) Mount(source, target, fstype string, options []string) error {
	if fstype != "tmpfs" { // huge pages are never swapped
		return u.Mounter.Mount(source, target, fstype, options)
	}
	err := u.Mounter.Mount(source, target, fstype, append(slices.Clone(options), noSwap))
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	err = u.Mounter.Mount(source, target, fstype, options)
	if err == nil && u.Swappable != nil {
		u.Swappable()
	}
	return err
}
