package doctor

import (
	"io/fs"
	"syscall"
)

// ownerOf is the user whose a file is.
func ownerOf(info fs.FileInfo) uint32 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Uid
	}
	return 0
}
