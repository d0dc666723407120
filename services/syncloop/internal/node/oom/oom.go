// Package oom reports the processes that the kernel killed because memory ran out. Only the kernel's log has them. A
// kill because the machine ran out of memory becomes an event of the node, SystemOOM, as with a kubelet. A kill because
// of a container's own limit appears in the status of the pod; here it is only logged, with the process, which need not
// be the first of the container.
//
// Each kill is reported once. The position in the kernel's log is kept in a small file. So a restarted process, which
// perhaps was itself killed, reports the kills that happened meanwhile, and does not repeat others.
package oom

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// reason is the reason of the event. It is the kubelet's.
	reason = "SystemOOM"
	// maxAge is the maximum age of a kill that is reported after a restart. Events are kept as long.
	maxAge = time.Hour
	// fileMode lets only the owner read the file.
	fileMode = 0o600
)

// Log is the kernel's log from its oldest record: *KernelLog.
type Log interface {
	// Pending returns the next record without waiting; ok is false if there is none yet.
	Pending() (r Record, ok bool, err error)
	// Next waits for the next record.
	Next(ctx context.Context) (Record, error)
	Close() error
}

// Events records events about the node: *podevents.Recorder.
type Events interface {
	// NodeWarning records an event with a reason in one word and a sentence.
	NodeWarning(ctx context.Context, reason, message string)
}

// Config configures Run. All fields except Metrics are required.
type Config struct {
	// Open opens the log. It is called once.
	Open func() (Log, error)
	// File is the file for the position in the log. Its directory must exist.
	File string
	// Boot is the ID of this boot of the machine. The kernel's log does not survive a boot.
	Boot string
	// Now returns the time since boot without the time in suspend, which is the clock of the log.
	Now    func() time.Duration
	Events Events
	Logger *slog.Logger
	// Metrics counts kills; nil discards the counts.
	Metrics *Metrics
}

// place is the content of the file.
type place struct {
	Boot string `json:"boot"`
	// Next is the sequence number of the first unread record.
	Next uint64 `json:"next"`
}

type watcher struct {
	cfg    Config
	parser *Parser
	// next is the sequence number of the first record that neither this process nor an earlier one has read.
	next uint64
	// unsaved is true if the last save failed. Only the first of consecutive failures is logged.
	unsaved bool
}

// Run reports kills until ctx ends. If the log cannot be read, it logs that once and returns, because nothing else
// depends on it.
func Run(ctx context.Context, cfg Config) {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	w := &watcher{cfg: cfg, parser: new(Parser)}
	log, err := cfg.Open()
	if err == nil {
		err = errors.Join(w.read(ctx, log), log.Close())
	}
	if err != nil && ctx.Err() == nil {
		cfg.Logger.WarnContext(ctx, "processes that the kernel kills because of low memory are not reported: its log cannot be read",
			telemetry.KeyError, err)
	}
}

// read processes the records in the log and then those that follow.
func (w *watcher) read(ctx context.Context, log Log) error {
	before, known, err := load(w.cfg.File)
	if err != nil {
		w.cfg.Logger.WarnContext(ctx, "the position in the kernel's log is damaged: kills that happened while syncloop did not run are not reported",
			telemetry.KeyError, err)
	}
	if known && before.Boot == w.cfg.Boot {
		w.next = before.Next
	}
	for {
		r, ok, err := log.Pending()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		// At the first start of all, old records are not reported.
		w.process(ctx, r, known && r.At >= w.cfg.Now()-maxAge)
	}
	w.save(ctx)
	for {
		r, err := log.Next(ctx)
		if err != nil {
			return err
		}
		w.process(ctx, r, true)
	}
}

// process parses one record, and reports a kill if report is true and the record is new. It also parses old records,
// because one may be the beginning of a message that continues in a new record.
func (w *watcher) process(ctx context.Context, r Record, report bool) {
	fresh := r.Sequence >= w.next
	if fresh {
		w.next = r.Sequence + 1
	}
	if !r.Kernel {
		return // Any process with access to the device can write such a record.
	}
	kill, ok := w.parser.Line(r.Message)
	if !ok || !fresh || !report {
		return
	}
	w.save(ctx) // Save first: after a crash, a missing report is better than a repeated one.
	w.report(ctx, kill)
}

func (w *watcher) report(ctx context.Context, kill Kill) {
	w.cfg.Metrics.killed(kill.System)
	attrs := []any{"pid", kill.PID, "process", kill.Process, "cgroup", kill.Cgroup}
	if !kill.System {
		w.cfg.Logger.InfoContext(ctx, "the kernel has killed a process: its cgroup has reached its limit of memory",
			append(attrs, "limit", kill.Limit)...)
		return
	}
	w.cfg.Logger.WarnContext(ctx, "the kernel has killed a process: this machine ran out of memory", attrs...)
	text := fmt.Sprintf("System OOM encountered, victim process: %s, pid: %d", kill.Process, kill.PID)
	w.cfg.Events.NodeWarning(ctx, reason, text)
}

func scopeName(system bool) string {
	if system {
		return "system"
	}
	return "cgroup"
}

// save writes the position in the log.
func (w *watcher) save(ctx context.Context) {
	data, err := json.Marshal(place{Boot: w.cfg.Boot, Next: w.next})
	if err == nil {
		data, err = statedir.WithChecksum(data, "")
	}
	if err == nil {
		err = statedir.ReplaceFile(w.cfg.File, data, fileMode)
	}
	if err != nil && !w.unsaved {
		w.cfg.Logger.WarnContext(ctx, "the position in the kernel's log cannot be saved: after a restart, kills may be reported again",
			telemetry.KeyFile, w.cfg.File, telemetry.KeyError, err)
	}
	w.unsaved = err != nil
}

// load reads the position in the log. known is false without a valid file, as at the first start. A damaged file is set
// aside.
func load(file string) (p place, known bool, err error) {
	err = statedir.LoadCache(file, "", &p, func() error {
		if p.Boot == "" {
			return errors.New("it names no boot of the machine")
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return place{}, false, nil
	}
	return p, err == nil, err
}
