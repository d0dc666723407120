package sockets

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

const (
	// The variables of sd_listen_fds(3).
	listenPID, listenFDs, listenNames = "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"
	// firstFD is the first descriptor of the protocol, SD_LISTEN_FDS_START.
	firstFD = 3
)

// given returns the passed descriptors, close-on-exec, and removes them from the environment.
func given() []*os.File {
	if _, set := os.LookupEnv(listenPID); !set {
		// The supervisor leaves the variable out, because it cannot know the process ID before the start.
		_ = os.Setenv(listenPID, strconv.Itoa(os.Getpid())) // fails only for an invalid name
	}
	if !allSockets() {
		for _, name := range []string{listenPID, listenFDs, listenNames} {
			_ = os.Unsetenv(name)
		}
	}
	return activation.Files(true)
}

// allSockets reports whether all descriptors of the environment are sockets. If not, the variables were meant for
// another process, and the descriptors may be this process's own.
func allSockets() bool {
	n, err := strconv.Atoi(os.Getenv(listenFDs))
	if err != nil {
		return false
	}
	for fd := firstFD; fd < firstFD+n; fd++ {
		var stat unix.Stat_t
		if unix.Fstat(fd, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return false
		}
	}
	return true
}

// Give passes sockets to the process that cmd will start, which must have no other extra files. No other process
// inherits them, because they are close-on-exec.
func Give(cmd *exec.Cmd, held []Held) {
	if len(held) == 0 {
		return
	}
	var names []string
	for _, one := range held {
		names = append(names, one.Name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, one.File)
	}
	cmd.Env = append(cmd.Environ(), fmt.Sprintf("%s=%d", listenFDs, len(held)), listenNames+"="+strings.Join(names, ":"))
}
