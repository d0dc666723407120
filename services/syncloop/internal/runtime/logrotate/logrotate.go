// Package logrotate keeps the logs of containers from filling the disk: it looks at the files that the runtime writes
// to, at each containerLogMonitorInterval, puts aside those that have grown too large, compresses the older ones and
// removes those beyond containerLogMaxFiles. The names of the files, and what is where when, are the kubelet's (see
// internal/containerlog), and so log shippers made for it work.
//
//	a look   which containers run, and how large their files in use are; decide says what is to be done
//	a turn   of one log: remove, put aside, have the runtime make the next file
//	packing  of one log: compress what was put aside before
//
// Putting aside is a rename and a call of the runtime, which then opens a new file; the container writes on meanwhile,
// to the file that was renamed, so no line is lost. When the call fails the file is renamed back. A runtime that hangs
// in it delays this log and no other. Nor does compressing, which takes long: containerLogMaxWorkers logs are packed at
// a time, and are put aside again meanwhile.
//
// Nothing is remembered: each log is looked at as a whole once after a start, so what a process left that was killed
// between two steps is put in order by the next one. What runs is what pleg has observed.
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

// reopenTimeout is how long the runtime has to make a new file: some thousand times what it takes. The kubelet waits
// for runtimeRequestTimeout, two minutes, for all of which there is no file of the log's name.
const reopenTimeout = 10 * time.Second

// Container is a container as it was observed.
type Container struct {
	// ID is the runtime's.
	ID string
	// Pod is NAMESPACE/NAME, and Name the container's name in its spec: for messages.
	Pod, Name string
	// LogPath is the file in use of its log; one without is not looked at.
	LogPath string
	// Running is true when it runs. The log of one that does not is put in order and never put aside.
	Running bool
}

// Config is what a Rotator needs.
type Config struct {
	// Containers lists the containers of the node.
	Containers func() []Container
	// Reopen has the runtime make a new file of a container's log: ReopenContainerLog of the CRI.
	Reopen func(ctx context.Context, id string) error
	// Policy is how much is kept.
	Policy Policy
	// Workers is how many logs are compressed at a time: containerLogMaxWorkers, 1 or more.
	Workers int
	// Interval is the time from one look to the next: containerLogMonitorInterval.
	Interval time.Duration
	Clock    clock.WithTicker
	Logger   *slog.Logger
	// Metrics counts; nil counts nothing.
	Metrics *Metrics
}

// Rotator rotates logs. Make it with New.
type Rotator struct {
	cfg     Config
	workers chan struct{}
	turns   sync.WaitGroup

	mu sync.Mutex
	// logs has what is known of each container that was seen, by ID.
	logs map[string]*known
}

// known is what is remembered of a log while the process lives.
type known struct {
	// whole is true once the log was looked at as a whole and is in order.
	whole bool
	// busy is true while it is worked on, packing while files of it are compressed.
	busy, packing bool
	// passed is true when there was a turn while files were compressed: others may have to be after them.
	passed bool
	// failed and unpacked are why that failed the last time, as it was told; empty when it did not.
	failed, unpacked string
}

// New makes a Rotator. It starts nothing.
func New(cfg Config) *Rotator {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Rotator{cfg: cfg, workers: make(chan struct{}, cfg.Workers), logs: map[string]*known{}}
}

// Run looks at the logs until ctx ends, and returns its error then, when nothing is worked on any more.
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
		r.look(ctx)
	}
}

// look begins a turn of each log that needs one and is not worked on.
func (r *Rotator) look(ctx context.Context) {
	containers := r.cfg.Containers()
	r.mu.Lock()
	defer r.mu.Unlock()
	there := make(map[string]bool, len(containers))
	for _, c := range containers {
		if c.LogPath == "" {
			continue
		}
		there[c.ID] = true
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
		if !there[id] && !log.busy && !log.packing {
			delete(r.logs, id)
		}
	}
}

// fits tells whether the file in use is there and is not too large.
func (r *Rotator) fits(c Container) bool {
	size, err := sizeOf(c.LogPath)
	return err == nil && size != missing && size < r.cfg.Policy.MaxSize
}

// ended notes what a turn came to, and begins to compress what it left to be.
func (r *Rotator) ended(ctx context.Context, c Container, files []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.logs[c.ID]
	log.busy, log.whole = false, err == nil && (!log.passed || log.packing)
	r.tell(ctx, c, err, &log.failed)
	if len(files) > 0 {
		log.packing, log.passed = true, false
		r.turns.Go(func() { r.packed(ctx, c, r.pack(ctx, files)) })
	}
}

// packed notes what compressing came to.
func (r *Rotator) packed(ctx context.Context, c Container, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.logs[c.ID]
	log.packing, log.whole = false, log.whole && !log.passed
	r.tell(ctx, c, err, &log.unpacked)
}

// tell tells of an error that is another than the last one.
func (r *Rotator) tell(ctx context.Context, c Container, err error, last *string) {
	if ctx.Err() != nil {
		return
	}
	failed := ""
	if err != nil {
		failed = err.Error()
		r.cfg.Metrics.failed()
	}
	if failed != "" && failed != *last {
		r.cfg.Logger.Warn("the log of a container cannot be kept to its size; it is tried again",
			telemetry.KeyPod, c.Pod, telemetry.KeyContainer, c.Name, telemetry.KeyContainerID, c.ID, telemetry.KeyFile, c.LogPath, telemetry.KeyError, err)
	}
	*last = failed
}

// turn does with a log what is to be done, but for compressing: it returns what is to be compressed. What cannot be
// done now does not keep it from the rest.
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

// pack compresses files, when it is their turn.
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

// decide looks at a log as a whole. That of a container whose folder is gone needs nothing.
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

// renew has the runtime make a new file in use. With aside, the file in use is put aside first, and put back when the
// runtime does not make a new one.
func (r *Rotator) renew(ctx context.Context, c Container, aside bool) error {
	rotated := ""
	if aside {
		rotated = containerlog.RotatedPath(c.LogPath, r.cfg.Clock.Now())
		if taken(rotated) {
			return nil // the clock was set back, or a process before this one did it this second: the next look does it
		}
		if err := os.Rename(c.LogPath, rotated); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it was removed with its pod
			}
			return err
		}
	}
	asking, cancel := context.WithTimeout(ctx, reopenTimeout)
	defer cancel()
	err := r.cfg.Reopen(asking, c.ID)
	if err == nil {
		r.rotated(c, rotated)
		return nil
	}
	err = fmt.Errorf("have the runtime make a new file: %w", err)
	if !aside {
		return err
	}
	switch back := putBack(rotated, c.LogPath); {
	case errors.Is(back, fs.ErrExist):
		// The runtime has made the file all the same.
		r.rotated(c, rotated)
		return nil
	default:
		return errors.Join(err, back)
	}
}

// rotated tells of a file that was put aside.
func (r *Rotator) rotated(c Container, path string) {
	if path != "" {
		r.cfg.Metrics.rotated()
	}
	r.cfg.Logger.Debug("the runtime writes to a new file", telemetry.KeyPod, c.Pod, telemetry.KeyContainer, c.Name,
		telemetry.KeyContainerID, c.ID, telemetry.KeyFile, cmp.Or(path, c.LogPath))
}
