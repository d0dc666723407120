// Command debugger stands in for Delve in the test of compose.debug.yaml: it does what an attach does first. It stops
// the threads of the process that it is told to attach to, reads its program's functions, lets it go on, and serves.
package main

import (
	"debug/elf"
	"debug/gosym"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 || args[1] != "attach" {
		return fmt.Errorf("it is called with %q", args)
	}
	pid, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if err := stop(pid); err != nil {
		return fmt.Errorf("attach to process %d: %w", pid, err)
	}
	functions, err := symbols(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return fmt.Errorf("read the program of process %d: %w", pid, err)
	}
	address := ""
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--listen="); ok {
			address = value
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintf(conn, "attached, %d functions\n", functions)
		if err := conn.Close(); err != nil {
			return err
		}
	}
}

// stop stops a process for a moment.
func stop(pid int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(pid); err != nil {
		return err
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return err
	}
	return unix.PtraceDetach(pid)
}

// symbols returns the number of functions of a Go program.
func symbols(path string) (int, error) {
	program, err := elf.Open(path)
	if err != nil {
		return 0, err
	}
	defer program.Close() //nolint:errcheck // it was only read
	lines, err := program.Section(".gopclntab").Data()
	if err != nil {
		return 0, err
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(lines, program.Section(".text").Addr))
	if err != nil {
		return 0, err
	}
	return len(table.Funcs), nil
}
