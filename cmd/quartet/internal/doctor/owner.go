package doctor

import (
	"io/fs"
	"syscall"
)

// ownerOf returns the owner of a file.
func ownerOf(info fs.FileInfo) uint32 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Uid
	}
	return 0
}
