package statedir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// maxHolderBytes bounds what is read from a lock file, which anyone with access to the directory may have written.
const maxHolderBytes = 4096

// shortID is how many digits of a container's id `docker ps` shows.
const shortID = 12

// Holder names the process that holds a lock. What a lock file does not say, as those of an older version do not, is empty.
type Holder struct {
	// Service is the service's name, for example "pleg".
	Service string `json:"service"`
	// PID is its process id, as it is numbered where it runs.
	PID int `json:"pid"`
	// Host is the host name that it sees.
	Host string `json:"host,omitempty"`
	// Container is the id of the container that it runs in, as short as `docker ps` shows it; empty outside of one, and
	// where the id could not be told.
	Container string `json:"container,omitempty"`
	// Since is when it took the lock.
	Since time.Time `json:"since,omitzero"`
}

// String is "pleg with pid 7 on HOST in container ID since TIME", with the parts that are known.
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

// Self is this process as the holder of the lock of a service, since no time yet. What cannot be found out is left out: it
// is for people. Before chroot(2) it finds the container, after it no more.
func Self(service string) Holder {
	host, _ := os.Hostname()
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	cgroups, _ := os.ReadFile("/proc/self/cgroup")
	return Holder{Service: service, PID: os.Getpid(), Host: host, Container: containerID(mounts, cgroups)}
}

var (
	// ownFiles are the files that Docker and Podman keep for each container, and mount into it.
	ownFiles = regexp.MustCompile(`(?:/|-)containers/([0-9a-f]{64})/`)
	// ownCgroup is a cgroup named by a container's id: /docker/ID, docker-ID.scope, /kubepods/…/ID.
	ownCgroup = regexp.MustCompile(`[/-]([0-9a-f]{64})(?:\.scope)?$`)
	// containerName is what a lock file may say of a container.
	containerName = regexp.MustCompile(`^[0-9a-f]{12}$`)
)

// containerID tells the container that a process runs in from its mountinfo (proc_pid_mountinfo(5)) and its cgroups
// (cgroups(7)). The first is better: with a cgroup namespace the second says nothing.
func containerID(mountinfo, cgroups []byte) string {
	for line := range bytes.Lines(mountinfo) {
		fields := strings.Fields(string(line))
		if len(fields) < 5 {
			continue
		}
		root, mountPoint := fields[3], fields[4]
		switch mountPoint {
		case "/etc/hostname", "/etc/hosts", "/etc/resolv.conf":
			if match := ownFiles.FindStringSubmatch(root); match != nil {
				return match[1][:shortID]
			}
		}
	}
	for line := range bytes.Lines(cgroups) {
		if match := ownCgroup.FindSubmatch(bytes.TrimSpace(line)); match != nil {
			return string(match[1][:shortID])
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

// readHolder returns the zero Holder when the file says nothing that can be read: between taking the lock and writing
// its name a holder is nameless for a moment.
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
	if !containerName.MatchString(holder.Container) {
		holder.Container = ""
	}
	return holder
}

// printable keeps what a terminal shows of a text.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}
