package volumes

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// noSwap is the option of a tmpfs that keeps it in memory.
const noSwap = "noswap"

// Unswapped is a Mounter of file systems in memory of which nothing ever comes to a swap device, where the kernel can do that: since
// Linux 6.4, and not in a user namespace. Elsewhere it mounts without, as a kubelet does.
type Unswapped struct {
	Mounter
	// Swappable is told of each that was mounted without; nobody is when nil.
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
