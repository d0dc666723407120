// Package loglinks keeps a folder with a link to the log of each container of the node, as log shippers look for them:
// POD_NAMESPACE_CONTAINER-ID.log, which are the kubelet's names in /var/log/containers. The folder is that of the name
// containers beside podLogsDir: with the default, /var/log/pods, it is the kubelet's, and two nodes of one machine,
// which have pod logs of their own, have links of their own.
//
// A link is there while the runtime has the container, which is longer than it runs. What the runtime has is what pleg
// has observed, so nothing has to be remembered: the links are compared with it every second, and the folder as a whole
// every minute. Of the folder only links into podLogsDir are this node's: others are never touched.
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
	// period is how soon after the start of a container its link is there.
	period = time.Second
	// wholePeriods is how many of them pass between two looks at the whole folder.
	wholePeriods = 60
	// suffix ends the name of a link.
	suffix = ".log"
	// maxName is the longest name of a file that a file system takes.
	maxName = 255
	// dirMode lets shippers that are not root read the links, as the kubelet does.
	dirMode = 0o755
)

// Container is a container that the runtime has.
type Container struct {
	// Namespace and Pod name its pod, Name it in the pod, ID in the runtime.
	Namespace, Pod, Name, ID string
	// LogPath is its log; one without has no link.
	LogPath string
}

// Config is what a Keeper needs.
type Config struct {
	// PodLogsDir has the logs of pods: podLogsDir of the KubeletConfiguration, an absolute path.
	PodLogsDir string
	// Containers lists the containers of the node. With false they are not known yet, and nothing is done.
	Containers func() ([]Container, bool)
	Clock      clock.WithTicker
	Logger     *slog.Logger
}

// Keeper keeps the links. Make it with New.
type Keeper struct {
	cfg Config
	dir string
	// made has the links that are there, by name, with what they lead to.
	made map[string]string
	// failed is what could not be done, as it was told; empty when all could.
	failed string
}

// New makes a Keeper. It touches nothing.
func New(cfg Config) *Keeper {
	return &Keeper{cfg: cfg, dir: Dir(cfg.PodLogsDir), made: map[string]string{}}
}

// Dir is the folder of the links.
func Dir(podLogsDir string) string { return filepath.Join(filepath.Dir(podLogsDir), "containers") }

// Name is the name of the link to the log of a container. One that is too long is cut, as the kubelet does.
func Name(c Container) string {
	name := fmt.Sprintf("%s_%s_%s-%s", c.Pod, c.Namespace, c.Name, c.ID)
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// Run keeps the links until ctx ends, and returns its error then. The links stay.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := k.cfg.Clock.NewTicker(period)
	defer ticker.Stop()
	for turn := 0; ; {
		containers, known := k.cfg.Containers()
		if known {
			k.tell(k.keep(containers, turn%wholePeriods == 0))
			turn++
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// tell logs what could not be done when it is new.
func (k *Keeper) tell(err error) {
	failed := ""
	if err != nil {
		failed = err.Error()
	}
	if failed != "" && failed != k.failed {
		k.cfg.Logger.Warn("log shippers do not find every container's log in the folder of links; it is tried again",
			telemetry.KeyFile, k.dir, telemetry.KeyError, err)
	}
	k.failed = failed
}

// keep makes the links that are missing and removes those of containers that are gone. With whole it looks at what is
// in the folder instead of what it remembers.
func (k *Keeper) keep(containers []Container, whole bool) error {
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
		if _, there := k.made[name]; !there {
			errs = append(errs, k.link(name, log))
		}
	}
	return errors.Join(errs...)
}

// read notes which links of this node there are. Those of containers that the runtime does not have, to logs that are
// still there, are left out: they are as good as their logs.
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
		// Else it is one of a process before this, perhaps of a container that pleg has not seen yet.
		if _, ours := before[entry.Name()]; ours || isDead(path) {
			k.made[entry.Name()] = log
		}
	}
	return nil
}

// isDead tells whether a link leads to nothing.
func isDead(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// link makes a link, when there is what it leads to. One of the name that leads elsewhere is replaced if it is a link;
// one of a process before this is taken over.
func (k *Keeper) link(name, log string) error {
	if isDead(log) {
		return nil // not started yet, or just being put aside
	}
	path := filepath.Join(k.dir, name)
	err := os.Symlink(log, path)
	if errors.Is(err, fs.ErrExist) {
		if there, readErr := os.Readlink(path); readErr != nil {
			return err
		} else if there != log {
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
