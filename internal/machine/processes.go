package machine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// Process holds the facts about a process that several checks need.
type Process struct {
	// PID is the process ID, and UID its user ID.
	PID int
	UID uint32
	// Name is the command's name, truncated to 15 bytes. Args are the arguments, including the program.
	Name string
	Args []string
	// Sockets are the inodes of its open sockets.
	Sockets []uint64
	// Inotify is the number of its inotify instances, and Watches the number of their watches.
	Inotify, Watches int64
}

// Processes returns all processes of the machine. It omits facts that this user may not read, and processes that end in
// the meantime.
func (m Machine) Processes() ([]Process, error) {
	proc, err := m.proc()
	if err != nil {
		return nil, fmt.Errorf("reading the processes: %w", err)
	}
	all, err := proc.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("reading the processes: %w", err)
	}
	var out []Process
	for _, one := range all {
		if p, ok := processOf(one); ok {
			out = append(out, p)
		}
	}
	return out, nil
}

func processOf(proc procfs.Proc) (Process, bool) {
	const nobody = 65534 // a user that cannot be read
	p := Process{PID: proc.PID, UID: nobody}
	var err error
	if p.Name, err = proc.Comm(); err != nil {
		return p, false
	}
	if args, err := proc.CmdLine(); err == nil {
		p.Args = args
	}
	if status, err := proc.NewStatus(); err == nil {
		p.UID = uint32(status.UIDs[1]) //nolint:gosec // the effective one, which the kernel has as 32 bits
	}
	targets, err := proc.FileDescriptorTargets()
	if err != nil {
		return p, true
	}
	for _, target := range targets {
		if inode, found := strings.CutPrefix(target, "socket:["); found {
			if n, err := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 64); err == nil {
				p.Sockets = append(p.Sockets, n)
			}
		}
		if target == "anon_inode:inotify" {
			p.Inotify++
		}
	}
	// This reads a file for each open file, so it is left out for processes without inotify instances.
	if p.Inotify > 0 {
		if infos, err := proc.FileDescriptorsInfo(); err == nil {
			for _, info := range infos {
				p.Watches += int64(len(info.InotifyInfos))
			}
		}
	}
	return p, true
}

// listeners returns the inodes of the sockets that listen on a port of the loopback interface, or of all interfaces. It
// does not use procfs, because procfs has deprecated its reader of these files.
func (m Machine) listeners(port int) ([]uint64, error) {
	const listening = "0A" // TCP_LISTEN of net/tcp_states.h
	var inodes []uint64
	for _, file := range []string{"proc/net/tcp", "proc/net/tcp6"} {
		text, err := m.read(file)
		if errors.Is(err, os.ErrNotExist) && file == "proc/net/tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
			words := strings.Fields(line)
			if len(words) < 10 || words[3] != listening {
				continue
			}
			address, hexPort, _ := strings.Cut(words[1], ":")
			if n, err := strconv.ParseInt(hexPort, 16, 32); err != nil || int(n) != port || !coversLoopback(address) {
				continue
			}
			if inode, err := strconv.ParseUint(words[9], 10, 64); err == nil {
				inodes = append(inodes, inode)
			}
		}
	}
	return inodes, nil
}

// coversLoopback reports whether an address, in the form of /proc/net/tcp, prevents another socket from listening on
// 127.0.0.1: the address itself, all of IPv4, and all of IPv6, which includes IPv4. 127.0.0.1 is in the machine's byte
// order.
func coversLoopback(address string) bool {
	return address == "00000000" || address == "0100007F" || address == "7F000001" || address == strings.Repeat("0", 32)
}

// holdersOf returns the processes that have one of the sockets open: the server, and the process that holds the socket
// for it.
func holdersOf(processes []Process, inodes []uint64) (holders []Process) {
	for _, p := range processes {
		if slices.ContainsFunc(inodes, func(inode uint64) bool { return slices.Contains(p.Sockets, inode) }) {
			holders = append(holders, p)
		}
	}
	return holders
}
