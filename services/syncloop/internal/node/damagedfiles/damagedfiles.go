// Package damagedfiles reports the files of the node that were damaged. The process of a file renames it at its start,
// and goes on with what it can recover (statedir.SetAside). The renamed file stays until a person has looked at it, so
// the report does not depend on which process was killed since: this package looks for such files, of all processes,
// once a minute. They are in a metric and in the health of syncloop, and a new one is an event of the node.
package damagedfiles

import (
	"context"
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
	return []string{"*.damaged", "endings/*.damaged", "resizes/*.damaged", "probes/*.damaged", "applied/*.broken"},
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
	// Only Run uses them.
	seen    map[string]time.Time
	counted map[string]int

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

// Reasons returns a sentence for each damaged file.
func (r *Reporter) Reasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reasons)
}

// look reports what lies aside now.
func (r *Reporter) look(ctx context.Context) {
	counts, now := map[string]int{}, map[string]time.Time{}
	state, root := patterns()
	r.find(r.cfg.StateDir, state, counts, now)
	r.find(r.cfg.RootDir, root, counts, now)
	for file, n := range counts {
		r.metric.WithLabelValues(file).Set(float64(n))
	}
	for file := range r.counted {
		if counts[file] == 0 {
			r.metric.DeleteLabelValues(file)
		}
	}
	r.counted = counts
	var reasons []string
	for _, file := range slices.Sorted(maps.Keys(now)) {
		text := fmt.Sprintf("%s was damaged and is now %s: look for a failing disk, then remove it",
			aside.ReplaceAllString(file, ""), file)
		if len(reasons) < maxReasons {
			reasons = append(reasons, text)
		}
		if since := r.cfg.Clock.Since(now[file]); r.seen[file].Equal(now[file]) || since > maxAge {
			continue
		}
		r.cfg.Logger.WarnContext(ctx, "a file was damaged and is set aside", telemetry.KeyFile, file)
		r.cfg.Events.NodeWarning(ctx, reason, text)
	}
	r.seen = now
	r.mu.Lock()
	r.reasons = reasons
	r.mu.Unlock()
}

// find adds the files below a directory: their number by name, and the time since which they are aside. A file of many,
// such as one of a pod, counts for its directory.
func (r *Reporter) find(dir string, patterns []string, counts map[string]int, found map[string]time.Time) {
	for _, pattern := range patterns {
		folder, name := path.Split(pattern)
		folders, err := filepath.Glob(filepath.Join(escape(dir), folder))
		if err != nil {
			continue
		}
		for _, at := range folders {
			entries, _ := os.ReadDir(at) // without the directory there is no file
			for _, entry := range entries {
				if ok, _ := path.Match(name, entry.Name()); !ok {
					continue
				}
				info, err := entry.Info()
				if err != nil {
					continue // it was removed just now
				}
				label := aside.ReplaceAllString(entry.Name(), "")
				if folder != "" && !strings.HasPrefix(folder, "device-plugins/") {
					label, _, _ = strings.Cut(folder, "/")
				}
				counts[label]++
				found[filepath.Join(at, entry.Name())] = changed(info)
			}
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

// escape returns a path as a pattern of filepath.Glob that matches it alone.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
