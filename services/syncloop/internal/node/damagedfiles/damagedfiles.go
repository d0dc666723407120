// Package damagedfiles reports the files of the node that were damaged. The process of a file renames it at its start,
// and goes on with what it can recover (statedir.SetAside). The renamed file stays until a person has looked at it, so
// the report does not depend on which process was killed since: this package looks for such files, of all processes,
// once a minute. They are in a metric and in the health of syncloop, and a new one is an event of the node. A directory
// that cannot be listed is in the log and in the health, and what lay in it counts on. So is one of the two directories
// on a disk that has become read-only.
package damagedfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// reason is the reason of the event.
	reason = "DamagedFile"
	// period is the time between two looks.
	period = time.Minute
	// maxAge is the age of a file from which on it is no event any more. Events are kept as long.
	maxAge = time.Hour
	// maxReasons bounds the files in the health.
	maxReasons = 10
)

// patterns are the places of files that are set aside, in the state directory and in the root directory.
func patterns() (state, root []string) {
	return []string{
			"*.damaged", "endings/*.damaged", "resizes/*.damaged", "probes/*.damaged", "applied/*.broken",
			// of systemd units with users of their own
			"configmux/*.damaged", "nodestatus/*.damaged",
		},
		[]string{"*.damaged", "device-plugins/*.corrupt", "image_manager/*/*.damaged"}
}

// aside matches what is appended to the name of a file that is set aside.
var aside = regexp.MustCompile(`(\.\d)?\.(damaged|broken|corrupt)$`)

// Config configures a Reporter. All fields are required.
type Config struct {
	// StateDir and RootDir are the directories of the node.
	StateDir, RootDir string
	// Events records events of the node: *podevents.Recorder.
	Events interface {
		NodeWarning(ctx context.Context, reason, message string)
	}
	Clock    clock.WithTicker
	Logger   *slog.Logger
	Registry prometheus.Registerer
}

// Reporter reports the files.
type Reporter struct {
	cfg    Config
	metric *prometheus.GaugeVec
	// seen has the files that were reported, with the time at which they were set aside, and counted those in the metric.
	// Only Run uses these four.
	seen    map[string]time.Time
	counted map[string]int
	// unread has the directories that could not be listed, with the errors, and readOnly the one on a read-only
	// disk; empty for none.
	unread   map[string]error
	readOnly string

	mu      sync.Mutex
	reasons []string
}

// New returns a Reporter.
func New(cfg Config) *Reporter {
	r := &Reporter{cfg: cfg, seen: map[string]time.Time{}, metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "quartet_damaged_files",
		Help: "Files of the node that were damaged and are set aside, until somebody removes them.",
	}, []string{"file"})}
	cfg.Registry.MustRegister(r.metric)
	return r
}

// Run looks for damaged files until ctx ends, whose error it returns.
func (r *Reporter) Run(ctx context.Context) error {
	ticker := r.cfg.Clock.NewTicker(period)
	defer ticker.Stop()
	for {
		r.look(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// Reasons returns a sentence for each damaged file, and for each directory that cannot be listed or written.
func (r *Reporter) Reasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reasons)
}

// look reports what lies aside now.
func (r *Reporter) look(ctx context.Context) {
	f := finding{before: r.seen, counts: map[string]int{}, files: map[string]time.Time{}, unread: map[string]error{}}
	state, root := patterns()
	f.find(r.cfg.StateDir, state)
	f.find(r.cfg.RootDir, root)
	for file, n := range f.counts {
		r.metric.WithLabelValues(file).Set(float64(n))
	}
	for file := range r.counted {
		if f.counts[file] == 0 {
			r.metric.DeleteLabelValues(file)
		}
	}
	r.counted = f.counts
	reasons := r.lookForReadOnly(ctx)
	for _, dir := range slices.Sorted(maps.Keys(f.unread)) {
		reasons = append(reasons, fmt.Sprintf("%s cannot be listed, so that damaged files in it are not known: %v: "+
			"look for a failing disk", dir, f.unread[dir]))
		if r.unread[dir] == nil {
			r.cfg.Logger.WarnContext(ctx, "a directory cannot be listed: damaged files in it are not known",
				telemetry.KeyFile, dir, telemetry.KeyError, f.unread[dir])
		}
	}
	for _, file := range slices.Sorted(maps.Keys(f.files)) {
		text := fmt.Sprintf("%s was damaged and is now %s: look for a failing disk, then remove it",
			aside.ReplaceAllString(file, ""), file)
		reasons = append(reasons, text)
		if since := r.cfg.Clock.Since(f.files[file]); r.seen[file].Equal(f.files[file]) || since > maxAge {
			continue
		}
		r.cfg.Logger.WarnContext(ctx, "a file was damaged and is set aside", telemetry.KeyFile, file)
		r.cfg.Events.NodeWarning(ctx, reason, text)
	}
	r.seen, r.unread = f.files, f.unread
	r.mu.Lock()
	r.reasons = reasons[:min(len(reasons), maxReasons)]
	r.mu.Unlock()
}

// lookForReadOnly reports whether the state directory, or else the root directory, is on a read-only disk.
func (r *Reporter) lookForReadOnly(ctx context.Context) (reasons []string) {
	before := r.readOnly
	r.readOnly = ""
	for _, dir := range []string{r.cfg.RootDir, r.cfg.StateDir} {
		if statedir.IsReadOnly(dir) {
			r.readOnly = dir
		}
	}
	if r.readOnly == "" {
		if before != "" {
			r.cfg.Logger.InfoContext(ctx, "a directory of the node can be written again", telemetry.KeyFile, before)
		}
		return nil
	}
	text := r.readOnly + " is on a read-only file system: no new pod starts, and a restart of the machine forgets " +
		"evictions of this time: look for a failing disk in dmesg, and mount it writable"
	if before != r.readOnly {
		r.cfg.Logger.ErrorContext(ctx, text)
	}
	return []string{text}
}

// finding is one look at all directories.
type finding struct {
	// before are the files of the last look.
	before map[string]time.Time
	// counts has the number of files by name, and files the time since which each is aside.
	counts map[string]int
	files  map[string]time.Time
	// unread has the errors of directories that could not be listed. One that does not exist has no files.
	unread map[string]error
}

// find adds the files below a directory that match one of the patterns.
func (f *finding) find(dir string, patterns []string) {
	for _, pattern := range patterns {
		folder, name := path.Split(pattern)
		for _, at := range f.folders(dir, strings.Split(strings.TrimSuffix(folder, "/"), "/")) {
			f.aside(at, folder, name)
		}
	}
}

// folders returns the directories below one whose names are the parts of a path; the part * is every directory.
func (f *finding) folders(dir string, parts []string) []string {
	if len(parts) == 0 || parts[0] == "" {
		return []string{dir}
	}
	if parts[0] != "*" {
		return f.folders(filepath.Join(dir, parts[0]), parts[1:])
	}
	var all []string
	for _, entry := range f.list(dir) {
		if entry.IsDir() {
			all = append(all, f.folders(filepath.Join(dir, entry.Name()), parts[1:])...)
		}
	}
	return all
}

// list returns the entries of a directory, and notes if there may be others.
func (f *finding) list(dir string) []fs.DirEntry {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.unread[dir] = err
	}
	return entries
}

// aside adds the files in a directory whose names match a pattern. A file of many, such as one of a pod, counts for its
// folder. What lay in a directory that cannot be listed is taken to be there still.
func (f *finding) aside(at, folder, pattern string) {
	add := func(name string, since time.Time) {
		if ok, _ := path.Match(pattern, name); !ok {
			return
		}
		label := aside.ReplaceAllString(name, "")
		switch first, _, _ := strings.Cut(folder, "/"); first {
		case "", "device-plugins", "configmux", "nodestatus":
		default:
			label = first
		}
		f.counts[label]++
		f.files[filepath.Join(at, name)] = since
	}
	for _, entry := range f.list(at) {
		if info, err := entry.Info(); err == nil { // otherwise it was removed just now
			add(entry.Name(), changed(info))
		}
	}
	if f.unread[at] == nil {
		return
	}
	for file, since := range f.before {
		if _, counted := f.files[file]; filepath.Dir(file) == at && !counted {
			add(filepath.Base(file), since)
		}
	}
}

// changed returns the time at which a file got its name.
func changed(info fs.FileInfo) time.Time {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(stat.Ctim.Unix())
	}
	return info.ModTime()
}
