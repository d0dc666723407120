// Package loglinks maintains a folder with a link to the log of each container of the node, as log shippers expect it:
// POD_NAMESPACE_CONTAINER-ID.log, the kubelet's names in /var/log/containers. The folder is called containers and is
// next to podLogsDir. With the default, /var/log/pods, it is the kubelet's folder. Two nodes on one machine have
// different podLogsDirs and therefore different folders.
//
// A link exists as long as the runtime has the container, which is longer than the container runs. pleg's observations
// show which containers the runtime has, so that nothing has to be stored: the links are compared with them every
// second, and the content of the folder every minute. Only links into podLogsDir belong to this node; others are never
// changed.
package loglinks

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// period is the longest time between the start of a container and the creation of its link.
	period = time.Second
	// wholePeriods is the number of periods between two checks of the whole folder.
	wholePeriods = 60
	// suffix is the end of a link's name.
	suffix = ".log"
	// maxName is the longest name of a file in bytes.
	maxName = 255
	// dirMode lets shippers that do not run as root read the links, as in the kubelet.
	dirMode = 0o755
)

// Container is a container in the runtime.
type Container struct {
	// Namespace and Pod are the namespace and name of its pod, Name is its name in the pod, ID the runtime's ID.
	Namespace, Pod, Name, ID string
	// LogPath is the path of its log; a container without one gets no link.
	LogPath string
}

// Config holds the dependencies of a Keeper.
type Config struct {
	// PodLogsDir is the folder of the pods' logs: podLogsDir of the KubeletConfiguration, an absolute path.
	PodLogsDir string
	// Containers returns the containers of the node. If it returns false, they are not known yet and nothing is done.
	Containers func() ([]Container, bool)
	Clock      clock.WithTicker
	Logger     *slog.Logger
}

// Keeper maintains the links. Create it with New.
type Keeper struct {
	cfg Config
	dir string
	// made holds the existing links with their targets, by name.
	made map[string]string
	// settled has the containers of the last update, if that has left nothing to do.
	settled map[Container]struct{}
	// failed is the last logged error; empty after a success.
	failed string
}

// New returns a Keeper. It changes no file.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, dir: Dir(cfg.PodLogsDir), made: map[string]string{}}
}

// Dir returns the folder of the links.
func Dir(podLogsDir string) string { return filepath.Join(filepath.Dir(podLogsDir), "containers") }

// Name returns the name of the link to the log of a container. A name that is too long is truncated, as in the kubelet.
func Name(c Container) string {
	name := fmt.Sprintf("%s_%s_%s-%s", c.Pod, c.Namespace, c.Name, c.ID)
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// Run maintains the links until ctx ends, and returns its error. The links stay.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := k.cfg.Clock.NewTicker(period)
	defer ticker.Stop()
	for turn := 0; ; {
		containers, known := k.cfg.Containers()
		if known {
			k.report(k.update(containers, turn%wholePeriods == 0))
			turn++
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// report logs an error if it differs from the last one.
func (k *Keeper) report(err error) {
	failed := ""
	if err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != k.failed {
		k.cfg.Logger.Warn("cannot update the links to container logs, log shippers miss some logs; retrying",
			telemetry.KeyFile, k.dir, telemetry.KeyError, err)
	}
	k.failed = failed
}

// update creates missing links and removes those of removed containers. With whole it reads the content of the folder
// instead of relying on its memory.
func (k *Keeper) update(containers []Container, whole bool) error {
	if !whole && k.isSettled(containers) {
		return nil
	}
	k.settled = nil
	want := map[string]string{}
	for _, c := range containers {
		if c.LogPath != "" {
			want[Name(c)] = c.LogPath
		}
	}
	var errs []error
	if whole {
		errs = append(errs, k.read())
	}
	for name, log := range k.made {
		if want[name] == log {
			continue
		}
		if err := os.Remove(filepath.Join(k.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(k.made, name)
	}
	for name, log := range want {
		if _, found := k.made[name]; !found {
			errs = append(errs, k.link(name, log))
		}
	}
	if err := errors.Join(errs...); err != nil || len(k.made) < len(want) {
		return err
	}
	k.settled = make(map[Container]struct{}, len(containers))
	for _, c := range containers {
		k.settled[c] = struct{}{}
	}
	return nil
}

// isSettled reports whether the containers are those for which nothing was left to do. At rest they are; with 100 pods
// only the workers took more of syncloop's processor time there than new names of all links every second.
func (k *Keeper) isSettled(containers []Container) bool {
	if k.settled == nil || len(containers) != len(k.settled) {
		return false
	}
	for _, c := range containers {
		if _, found := k.settled[c]; !found {
			return false
		}
	}
	return true
}

// read reads which links of this node exist. It ignores links of unknown containers whose logs still exist: they stay
// as long as the logs.
func (k *Keeper) read() error {
	if err := os.MkdirAll(k.dir, dirMode); err != nil {
		return err
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	before := k.made
	k.made = map[string]string{}
	for _, entry := range entries {
		if entry.Type() != fs.ModeSymlink || !strings.HasSuffix(entry.Name(), suffix) {
			continue
		}
		path := filepath.Join(k.dir, entry.Name())
		log, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(log, k.cfg.PodLogsDir+string(filepath.Separator)) {
			continue
		}
		// Otherwise a previous process has created the link, perhaps for a container that pleg has not observed yet.
		if _, ours := before[entry.Name()]; ours || isDead(path) {
			k.made[entry.Name()] = log
		}
	}
	return nil
}

// isDead reports whether the target of a link is missing.
func isDead(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// link creates a link if its target exists. It replaces a link with another target, but no other file. It takes over a
// link that a previous process created.
func (k *Keeper) link(name, log string) error {
	if isDead(log) {
		return nil // not started yet, or its log is being rotated
	}
	path := filepath.Join(k.dir, name)
	err := os.Symlink(log, path)
	if errors.Is(err, fs.ErrExist) {
		if target, readErr := os.Readlink(path); readErr != nil {
			return err
		} else if target != log {
			err = errors.Join(os.Remove(path), os.Symlink(log, path))
		} else {
			err = nil
		}
	}
	if err == nil {
		k.made[name] = log
	}
	return err
}
