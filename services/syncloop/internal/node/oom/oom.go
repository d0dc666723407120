// Package oom tells which processes the kernel has killed since there was no memory left, which it says in its log alone: a
// kill for the machine's own want of memory is an event of the node, SystemOOM, as a kubelet tells it. A container that is killed
// for its own limit is in the status of its pod, and here in the log: with the process, which need not be the container's first.
//
// A kill is told once. Up to where the kernel's log was read is in a small file, so that a process that was killed, perhaps for this
// very want of memory, tells when it is back what happened meanwhile, and nothing again.
package oom

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/kernellog"
)

const (
	// reason is the kubelet's.
	reason = "SystemOOM"
	// maxAge is how long ago what happened while this process was away may have happened to be told: as long as events are kept.
	maxAge = time.Hour
	// fileMode lets nobody else read where the log was read to.
	fileMode = 0o600
)

// Log is the kernel's log, from its oldest record on; *kernellog.Log is it.
type Log interface {
	// Pending returns the next record if there is one already.
	Pending() (r kernellog.Record, ok bool, err error)
	// Next waits for it.
	Next(ctx context.Context) (kernellog.Record, error)
	Close() error
}

// Events is told of kills; *podevents.Recorder keeps it.
type Events interface {
	// NodeWarning tells something of the node: a reason in one word, and a sentence.
	NodeWarning(ctx context.Context, reason, message string)
}

// Config is what Run needs. All of it is required.
type Config struct {
	// Open opens the log, once.
	Open func() (Log, error)
	// File is where it is kept up to where the log was read; its directory is there.
	File string
	// Boot names this boot of the machine: of another one the kernel has no log any more.
	Boot string
	// Now is the time since the boot, without that which the machine has slept: the clock of the log.
	Now    func() time.Duration
	Events Events
	Logger *slog.Logger
	// Metrics counts kills; nil counts nothing.
	Metrics *Metrics
}

// place is what the file has.
type place struct {
	Boot string `json:"boot"`
	// Next is the number of the first record that was not looked at.
	Next uint64 `json:"next"`
}

type watcher struct {
	cfg    Config
	parser *Parser
	// next is the number of the first record that was not looked at, by this process or one before it.
	next uint64
	// unsaved is true when that could not be written, which is said once.
	unsaved bool
}

// Run tells kills until ctx ends. When the log cannot be read it says so in the log of this process, once, and returns: nothing else
// depends on it.
func Run(ctx context.Context, cfg Config) {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	w := &watcher{cfg: cfg, parser: new(Parser)}
	log, err := cfg.Open()
	if err == nil {
		err = errors.Join(w.read(ctx, log), log.Close())
	}
	if err != nil && ctx.Err() == nil {
		cfg.Logger.WarnContext(ctx, "processes that the kernel kills for want of memory are not told: its log cannot be read", telemetry.KeyError, err)
	}
}

// read looks at what is in the log and then at what comes.
func (w *watcher) read(ctx context.Context, log Log) error {
	before, known := load(w.cfg.File)
	if known && before.Boot == w.cfg.Boot {
		w.next = before.Next
	}
	for {
		r, there, err := log.Pending()
		if err != nil {
			return err
		}
		if !there {
			break
		}
		// Before the first start of all nobody was to tell anything.
		w.look(ctx, r, known && r.At >= w.cfg.Now()-maxAge)
	}
	w.save(ctx)
	for {
		r, err := log.Next(ctx)
		if err != nil {
			return err
		}
		w.look(ctx, r, true)
	}
}

// look takes one record. What is old is looked at since it may be the beginning of what is not.
func (w *watcher) look(ctx context.Context, r kernellog.Record, tell bool) {
	fresh := r.Sequence >= w.next
	if fresh {
		w.next = r.Sequence + 1
	}
	if !r.Kernel {
		return // anybody who may write there could say that
	}
	kill, ok := w.parser.Line(r.Message)
	if !ok || !fresh || !tell {
		return
	}
	w.save(ctx) // first: better not at all than twice
	w.tell(ctx, kill)
}

func (w *watcher) tell(ctx context.Context, kill Kill) {
	w.cfg.Metrics.killed(kill.System)
	about := []any{"pid", kill.PID, "process", kill.Process, "cgroup", kill.Cgroup}
	if !kill.System {
		w.cfg.Logger.InfoContext(ctx, "the kernel has killed a process: its cgroup has reached its limit of memory", append(about, "limit", kill.Limit)...)
		return
	}
	w.cfg.Logger.WarnContext(ctx, "the kernel has killed a process: this machine has no memory left", about...)
	w.cfg.Events.NodeWarning(ctx, reason, fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", kill.Process, kill.PID))
}

func scopeName(system bool) string {
	if system {
		return "system"
	}
	return "cgroup"
}

// save keeps up to where the log was read.
func (w *watcher) save(ctx context.Context) {
	data, err := json.Marshal(place{Boot: w.cfg.Boot, Next: w.next})
	if err == nil {
		err = statedir.ReplaceFile(w.cfg.File, data, fileMode)
	}
	if err != nil && !w.unsaved {
		w.cfg.Logger.WarnContext(ctx, "after a restart, kills for want of memory may be told again", telemetry.KeyFile, w.cfg.File, telemetry.KeyError, err)
	}
	w.unsaved = err != nil
}

// load reads up to where the log was read. It is not known before the first time, nor from a file that cannot be understood.
func load(file string) (p place, known bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return place{}, false
	}
	if err := json.Unmarshal(data, &p); err != nil || p.Boot == "" {
		return place{}, false
	}
	return p, true
}
