package imagegc

import "golang.org/x/sys/unix"

// DiskUsage returns the usage of the file system of a directory. Available is the space that is available to users
// other than root, as in the kubelet.
func DiskUsage(dir string) (Usage, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return Usage{}, err
	}
	size := int64(stat.Bsize)                                                                    //nolint:unconvert // 32 bits wide elsewhere
	return Usage{Capacity: int64(stat.Blocks) * size, Available: int64(stat.Bavail) * size}, nil //nolint:gosec // less than 8 EiB
}
