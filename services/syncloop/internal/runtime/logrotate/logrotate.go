// Package logrotate limits the disk space of container logs. At each containerLogMonitorInterval it checks the files
// that the runtime writes to, rotates those that have grown too large, compresses older ones and removes those beyond
// containerLogMaxFiles. The names of the files and the order of the steps are the kubelet's (see
// internal/containerlog), so that log shippers work with them.
//
//	check  lists the running containers and the sizes of their current files; decide returns the plan
//	turn   of one log: remove files, rotate, have the runtime create the next file
//	pack   of one log: compress files that were rotated before
//
// A rotation is a rename and a call of the runtime, which then opens a new file. Until then the container writes to the
// renamed file, so that no line is lost. If the call fails, the file is renamed back. A runtime that hangs in the call
// delays only this log. Compression takes long and delays no rotation: containerLogMaxWorkers logs are compressed at a
// time, and may be rotated again in the meantime.
//
// No state is stored: after a start each log is checked completely once, so that the work of a process that was killed
// between two steps is completed. pleg's observations show which containers run.
package logrotate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// reopenTimeout is the time limit for the runtime to create a new file: about a thousand times the usual duration. The
// kubelet waits for runtimeRequestTimeout, two minutes, in which the log has no current file.
const reopenTimeout = 10 * time.Second

// Container is an observed container.
type Container struct {
	// ID is the runtime's ID.
	ID string
	// Pod is NAMESPACE/NAME, and Name the container's name in its spec, both for messages.
	Pod, Name string
	// LogPath is the path of the current file of its log; a container without one is ignored.
	LogPath string
	// Running is true if the container runs. The log of an ended container is cleaned up but not rotated.
	Running bool
}

// Config holds the dependencies and settings of a Rotator.
type Config struct {
	// Containers returns the containers of the node.
	Containers func() []Container
	// Reopen makes the runtime create a new file of a container's log: ReopenContainerLog of the CRI.
	Reopen func(ctx context.Context, id string) error
	// Policy is how much of each log is kept.
	Policy Policy
	// Workers is the number of logs that are compressed concurrently: containerLogMaxWorkers, at least 1.
	Workers int
	// Interval is the time between two checks: containerLogMonitorInterval.
	Interval time.Duration
	Clock    clock.WithTicker
	Logger   *slog.Logger
	// Metrics counts; nil counts nothing.
	Metrics *Metrics
}

// Rotator rotates logs. Create it with New.
type Rotator struct {
	cfg     Config
	workers chan struct{}
	turns   sync.WaitGroup

	mu sync.Mutex
	// logs holds the state of each observed container, by ID.
	logs map[string]*known
}

// known is the in-memory state of a log.
type known struct {
	// whole is true after the log was checked completely and needed no further action.
	whole bool
	// busy is true during a turn, packing while files are being compressed.
	busy, packing bool
	// passed is true if there was a turn during the compression: then other files may need compression after it.
	passed bool
	// failed and unpacked are the last logged errors of a turn and of a compression; empty after a success.
	failed, unpacked string
}

// New returns a Rotator. It starts nothing.
func New(cfg Config) *Rotator {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Rotator{cfg: cfg, workers: make(chan struct{}, cfg.Workers), logs: map[string]*known{}}
}

// Run checks the logs until ctx ends. It returns the error of ctx after all turns have ended.
func (r *Rotator) Run(ctx context.Context) error {
	defer r.turns.Wait()
	ticker := r.cfg.Clock.NewTicker(r.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
		r.check(ctx)
	}
}

// check starts a turn for each log that needs one and has none running.
func (r *Rotator) check(ctx context.Context) {
	containers := r.cfg.Containers()
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := make(map[string]bool, len(containers))
	for _, c := range containers {
		if c.LogPath == "" {
			continue
		}
		seen[c.ID] = true
		log := r.logs[c.ID]
		if log == nil {
			log = &known{}
			r.logs[c.ID] = log
		}
		if log.busy || (log.whole && (!c.Running || r.fits(c))) {
			continue
		}
		packing := log.packing
		log.busy, log.passed = true, packing
		r.turns.Go(func() {
			compress, err := r.turn(ctx, c, packing)
			r.ended(ctx, c, compress, err)
		})
	}
	for id, log := range r.logs {
		if !seen[id] && !log.busy && !log.packing {
			delete(r.logs, id)
		}
	}
}

// fits reports whether the current file exists and is not too large.
func (r *Rotator) fits(c Container) bool {
	size, err := sizeOf(c.LogPath)
	return err == nil && size != missing && size < r.cfg.Policy.MaxSize
}

// ended records the outcome of a turn, and starts the compression of the files that are due.
func (r *Rotator) ended(ctx context.Context, c Container, files []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.logs[c.ID]
	log.busy, log.whole = false, err == nil && (!log.passed || log.packing)
	r.report(ctx, c, err, &log.failed)
	if len(files) > 0 {
		log.packing, log.passed = true, false
		r.turns.Go(func() { r.packed(ctx, c, r.pack(ctx, files)) })
	}
}

// packed records the outcome of a compression.
func (r *Rotator) packed(ctx context.Context, c Container, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.logs[c.ID]
	log.packing, log.whole = false, log.whole && !log.passed
	r.report(ctx, c, err, &log.unpacked)
}

// report logs an error if it differs from the last one.
func (r *Rotator) report(ctx context.Context, c Container, err error, last *string) {
	if ctx.Err() != nil {
		return
	}
	failed := ""
	if err != nil {
		failed = err.Error()
		r.cfg.Metrics.failed()
	}
	if failed != "" && failed != *last {
		r.cfg.Logger.Warn("cannot limit the size of a container's log; retrying",
			telemetry.KeyPod, c.Pod, telemetry.KeyContainer, c.Name, telemetry.KeyContainerID, c.ID,
			telemetry.KeyFile, c.LogPath, telemetry.KeyError, err)
	}
	*last = failed
}

// turn runs the plan of a log except compression, and returns the files to compress. A failed step does not prevent the
// others.
func (r *Rotator) turn(ctx context.Context, c Container, packing bool) (files []string, err error) {
	p, err := r.decide(c, packing)
	if err != nil || p.nothing() {
		return nil, err
	}
	err = removeAll(p.remove)
	switch {
	case p.restore != "":
		err = errors.Join(err, putBack(p.restore, c.LogPath))
	case p.rotate, p.reopen:
		err = errors.Join(err, r.renew(ctx, c, p.rotate))
	}
	return p.compress, err
}

// pack compresses files after waiting for a worker.
func (r *Rotator) pack(ctx context.Context, files []string) error {
	select {
	case r.workers <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.workers }()
	var errs []error
	for _, path := range files {
		errs = append(errs, compress(ctx, path, r.cfg.Clock.Now()))
	}
	return errors.Join(errs...)
}

// decide checks a log completely and returns its plan. The plan is empty if the folder of the log does not exist.
func (r *Rotator) decide(c Container, packing bool) (plan, error) {
	files, err := containerlog.List(c.LogPath)
	if errors.Is(err, fs.ErrNotExist) {
		return plan{}, nil
	}
	if err != nil {
		return plan{}, fmt.Errorf("list the files of the log: %w", err)
	}
	size, err := sizeOf(c.LogPath)
	if err != nil {
		return plan{}, err
	}
	return decide(state{size: size, files: files, running: c.Running, packing: packing}, r.cfg.Policy), nil
}

// renew makes the runtime create a new current file. With rotate, it renames the current file first, and renames it
// back if the runtime does not create a new one.
func (r *Rotator) renew(ctx context.Context, c Container, rotate bool) error {
	rotated := ""
	if rotate {
		rotated = containerlog.RotatedPath(c.LogPath, r.cfg.Clock.Now())
		if taken(rotated) {
			return nil // the clock was set back, or a previous process rotated in this second: the next check rotates
		}
		if err := os.Rename(c.LogPath, rotated); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed with its pod
			}
			return err
		}
	}
	reopenCtx, cancel := context.WithTimeout(ctx, reopenTimeout)
	defer cancel()
	err := r.cfg.Reopen(reopenCtx, c.ID)
	if err == nil {
		r.rotated(c, rotated)
		return nil
	}
	err = fmt.Errorf("have the runtime make a new file: %w", err)
	if !rotate {
		return err
	}
	switch back := putBack(rotated, c.LogPath); {
	case errors.Is(back, fs.ErrExist):
		// The runtime has created the file despite the error.
		r.rotated(c, rotated)
		return nil
	default:
		return errors.Join(err, back)
	}
}

// rotated counts and logs a rotation.
func (r *Rotator) rotated(c Container, path string) {
	if path != "" {
		r.cfg.Metrics.rotated()
	}
	r.cfg.Logger.Debug("the runtime writes to a new file", telemetry.KeyPod, c.Pod, telemetry.KeyContainer, c.Name,
		telemetry.KeyContainerID, c.ID, telemetry.KeyFile, cmp.Or(path, c.LogPath))
}
