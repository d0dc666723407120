package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/process"
)

// maxHolderBytes bounds the reading of a lock file, which any user of the directory may have written.
const maxHolderBytes = 4096

// shortID is the number of digits of a container's ID in `docker ps`.
const shortID = 12

// Holder identifies the process that holds a lock. Fields that are missing in the lock file, as in those of older
// versions, are empty.
type Holder struct {
	// Service is the service's name, for example "pleg".
	Service string `json:"service"`
	// PID is its process ID in its own PID namespace.
	PID int `json:"pid"`
	// Host is the host name that it sees.
	Host string `json:"host,omitempty"`
	// Container is the ID of its container in the short form of `docker ps`; empty outside of a container, and if the ID
	// is unknown.
	Container string `json:"container,omitempty"`
	// Started, Boot and PIDNamespace are the rest of its process.Identity.
	Started      uint64 `json:"started,omitzero"`
	Boot         string `json:"boot,omitempty"`
	PIDNamespace string `json:"pidNamespace,omitempty"`
	// Since is the time at which it took the lock.
	Since time.Time `json:"since,omitzero"`
}

// String returns "pleg with pid 7 on HOST in container ID since TIME", without unknown parts.
func (h Holder) String() string {
	if h.PID == 0 {
		return "another process"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s with pid %d", h.Service, h.PID)
	if h.Host != "" {
		b.WriteString(" on " + h.Host)
	}
	if h.Container != "" {
		b.WriteString(" in container " + h.Container)
	}
	if !h.Since.IsZero() {
		b.WriteString(" since " + h.Since.Format(time.RFC3339))
	}
	return b.String()
}

// Self returns this process as a Holder without the time. Unknown facts are omitted, because they are for people. It
// cannot detect the container after chroot(2).
func Self(service string) Holder {
	host, _ := os.Hostname()
	holder := Holder{Service: service, PID: os.Getpid(), Host: host}
	if self, err := procfs.Self(); err == nil {
		holder.Container = containerID(self, mountsOwnFiles())
	}
	if self, err := process.Self(); err == nil {
		holder.Started, holder.Boot, holder.PIDNamespace = self.Started, self.Boot, self.Namespace
	}
	return holder
}

var (
	// ownFiles are the files that Docker and Podman keep for each container, and mount into it.
	ownFiles = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:/|-)containers/([0-9a-f]{64})/`) })
	// ownCgroup is a cgroup named by a container's id: /docker/ID, docker-ID.scope, /kubepods/…/ID.
	ownCgroup = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[/-]([0-9a-f]{64})(?:\.scope)?$`) })
	// containerName matches a container ID in a lock file.
	containerName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{12}$`) })
)

// mountedFiles returns the files that an engine mounts into its containers.
func mountedFiles() []string { return []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"} }

// mountsOwnFiles reports whether one of mountedFiles may be a mount point. It asks the kernel for each, because its
// table of mounts has several lines for each container of the machine.
func mountsOwnFiles() bool {
	return slices.ContainsFunc(mountedFiles(), func(file string) bool {
		mounted, sure, err := mountinfo.MountedFast(file)
		return mounted || !sure && !errors.Is(err, fs.ErrNotExist)
	})
}

// containerID detects the container of a process from its mountinfo (proc_pid_mountinfo(5)), which is not read without
// mounts, and its cgroups (cgroups(7)). The first takes precedence, because in a cgroup namespace the second does not
// show the container.
func containerID(process procfs.Proc, mounts bool) string {
	var table []*procfs.MountInfo
	if mounts {
		table, _ = process.MountInfo() // without it the container is not named, or named by its cgroup
	}
	for _, mount := range table {
		if !slices.Contains(mountedFiles(), mount.MountPoint) {
			continue
		}
		if match := ownFiles().FindStringSubmatch(mount.Root); match != nil {
			return match[1][:shortID]
		}
	}
	cgroups, _ := process.Cgroups()
	for _, cgroup := range cgroups {
		if match := ownCgroup().FindStringSubmatch(cgroup.Path); match != nil {
			return match[1][:shortID]
		}
	}
	return ""
}

func writeHolder(file *os.File, holder Holder) error {
	data, err := json.Marshal(holder)
	if err != nil {
		return err
	}
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err = file.WriteAt(append(data, '\n'), 0)
	return err
}

// holderOf returns the holder of the lock of a service. If the file does not name it, or names an earlier one because
// the holder could not write, the kernel does (proc_locks(5)), unless it is in a PID namespace that this process does
// not see.
func holderOf(file *os.File, service string) Holder {
	holder := readHolder(file)
	pid, err := lockedBy(file)
	if err != nil || pid == 0 || pid == holder.PID {
		return holder
	}
	if holder.PID == 0 || holder.PIDNamespace != "" && holder.PIDNamespace == Self(service).PIDNamespace {
		return Holder{Service: service, PID: pid}
	}
	return holder
}

// lockedBy returns the process that holds the lock of a file; 0 if the kernel does not say.
func lockedBy(file *os.File) (pid int, err error) {
	var info unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &info); err != nil {
		return 0, err
	}
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, err
	}
	// A line is "1: FLOCK  ADVISORY  WRITE 8666 fe:00:9996218 0 EOF", with the device in hexadecimal digits.
	const kindField, pidField, fileField = 1, 4, 5
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(info.Dev), unix.Minor(info.Dev), info.Ino)
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > fileField && fields[kindField] == "FLOCK" && fields[fileField] == want {
			return strconv.Atoi(fields[pidField])
		}
	}
	return 0, nil
}

// readHolder reads a Holder from a lock file. It returns the zero Holder for an unreadable file: a holder writes its
// name shortly after it has taken the lock, if it can.
func readHolder(file io.ReaderAt) Holder {
	data, err := io.ReadAll(io.NewSectionReader(file, 0, maxHolderBytes))
	if err != nil {
		return Holder{}
	}
	var holder Holder
	if err := json.Unmarshal(data, &holder); err != nil {
		return Holder{}
	}
	holder.Service, holder.Host = printable(holder.Service), printable(holder.Host)
	if !containerName().MatchString(holder.Container) {
		holder.Container = ""
	}
	return holder
}

// printable removes unprintable characters from a text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}
