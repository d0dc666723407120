package memory

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is a part of the address space of this process, [start, end).
type mapping struct{ start, end uintptr }

// releaseProgram gives up the pages of the program that this process has mapped. They stay in the page cache, and the
// process maps those that it uses again without a read of the disk: a process at rest uses a small part of the code
// that its start needed. It returns the bytes of the mappings. If the kernel does not show them, all pages stay, which
// is harmless.
func releaseProgram() (released uintptr) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0
	}
	// It is read to its end first: the kernel changes what it shows with each call.
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0
	}
	for _, m := range cleanMappings(bytes.NewReader(text), program) {
		if _, _, failed := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); failed == 0 {
			released += m.end - m.start
		}
	}
	return released
}

// cleanMappings returns the mappings of a file in which no page can differ from the file, from a text in the format of
// /proc/PID/smaps, see proc_pid_smaps(5). Changed pages would be lost: variables, what the loader has relocated, and
// the breakpoints of a debugger.
func cleanMappings(smaps io.Reader, file string) (clean []mapping) {
	var current mapping
	candidate := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if name, isValue := strings.CutSuffix(fields[0], ":"); isValue {
			if candidate && name == "Anonymous" && len(fields) > 1 && fields[1] == "0" {
				clean = append(clean, current)
			}
			continue
		}
		current, candidate = parseMapping(lines.Text(), file)
	}
	return clean
}

// parseMapping parses the first line of a mapping, such as
//
//	00400000-019d5000 r-xp 00000000 fe:00 1048602                            /usr/bin/quartet
//
// It returns false for a mapping that is not of the file, or that is writable.
func parseMapping(line, file string) (m mapping, ok bool) {
	const parts = 6 // addresses, permissions, offset, device, inode, file
	fields := strings.SplitN(line, " ", parts)
	if len(fields) < parts || strings.TrimLeft(fields[parts-1], " ") != file || strings.Contains(fields[1], "w") {
		return m, false
	}
	from, to, _ := strings.Cut(fields[0], "-")
	start, startErr := strconv.ParseUint(from, 16, strconv.IntSize)
	end, endErr := strconv.ParseUint(to, 16, strconv.IntSize)
	return mapping{start: uintptr(start), end: uintptr(end)}, startErr == nil && endErr == nil && start < end
}
