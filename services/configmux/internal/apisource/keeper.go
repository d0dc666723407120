package apisource

import (
	"bytes"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// saveEvery is the minimum interval of writes, so that a hundred pods at once cause few writes.
	saveEvery = time.Second
	// saveAgain is the delay before a failed write is retried, unless something changes earlier.
	saveAgain = 10 * time.Second
)

// keeper reads and writes the checkpoint in its own goroutine, so that a disk that is slow or hangs delays no pod.
type keeper struct {
	path, node string
	clock      clock.WithTicker
	logger     *slog.Logger
	metrics    *Metrics
	// latest holds the pods to write next. Its capacity is one: newer pods replace unwritten ones.
	latest chan map[types.UID]*v1.Pod
	// ready says that the keeper writes the next pods at once. Its capacity is one: it is said once or more.
	ready chan struct{}
	// outcome holds the result of the last write. Its capacity is one: a newer result replaces one that was not received.
	outcome chan saving
	// read requests to read the file, and opened holds the result. Both have a capacity of one, and there is at most one
	// request without a received result.
	read   chan struct{}
	opened chan opening
	// written is the content of the file; nil if unknown.
	written []byte
}

// saving is the result of a write.
type saving struct{ err error }

func newKeeper(cfg Config) *keeper {
	return &keeper{
		path: cfg.Checkpoint, node: cfg.Node, clock: cfg.Clock, logger: cfg.Logger, metrics: cfg.Metrics,
		latest: make(chan map[types.UID]*v1.Pod, 1), ready: make(chan struct{}, 1), outcome: make(chan saving, 1),
		read: make(chan struct{}, 1), opened: make(chan opening, 1),
	}
}

// start starts the keeper. The returned function writes the last pods and stops it.
func (k *keeper) start() (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		k.run(end)
	}()
	return func() {
		close(end)
		<-done
	}
}

// keep passes all pods to the keeper. The caller must not change them afterwards. It never blocks; one goroutine calls
// it.
func (k *keeper) keep(pods map[types.UID]*v1.Pod) {
	select {
	case <-k.latest:
	default:
	}
	k.latest <- pods
}

// run reads the file at once and when it is told to, and writes pods until the end, and then the last ones.
func (k *keeper) run(end <-chan struct{}) {
	// unsaved holds pods that could not be written; nil if there are none.
	var unsaved map[types.UID]*v1.Pod
	k.opened <- k.open()
	for {
		select {
		case k.ready <- struct{}{}:
		default:
		}
		again, stop := k.after(saveAgain, unsaved != nil)
		select {
		case <-end:
			stop()
			k.last(unsaved)
			return
		case <-k.read:
			stop()
			k.opened <- k.open()
			continue
		case unsaved = <-k.latest:
		case <-again:
		}
		stop()
		err := k.save(unsaved)
		if err == nil {
			unsaved = nil
		}
		k.publish(err)
		pause, stop := k.after(saveEvery, true)
		select {
		case <-pause:
		case <-end:
		}
		stop()
	}
}

// after returns a channel that fires after a delay, or never; stop releases it.
func (k *keeper) after(d time.Duration, ever bool) (c <-chan time.Time, stop func()) {
	if !ever {
		return nil, func() {}
	}
	timer := k.clock.NewTimer(d)
	return timer.C(), func() { timer.Stop() }
}

// last writes the last pods, or else those that could not be written before.
func (k *keeper) last(unsaved map[types.UID]*v1.Pod) {
	select {
	case unsaved = <-k.latest:
	default:
	}
	if unsaved == nil {
		return
	}
	if err := k.save(unsaved); err != nil {
		// Run has ended, so that the error can only be logged.
		k.logger.Warn("cannot save the pods of the API server", telemetry.KeyFile, k.path, telemetry.KeyError, err)
	}
}

// save writes pods, unless the file already holds them.
func (k *keeper) save(pods map[types.UID]*v1.Pod) error {
	data, err := encode(k.node, pods)
	if err == nil && bytes.Equal(data, k.written) {
		return nil
	}
	if err == nil {
		err = statedir.WriteFileAtomic(k.path, data, checkpointMode)
	}
	if err != nil {
		k.metrics.unwritten.Inc()
		k.written = nil
		return err
	}
	k.metrics.written.Inc()
	k.written = data
	return nil
}

// publish publishes the result of a write. It never blocks.
func (k *keeper) publish(err error) {
	select {
	case <-k.outcome:
	default:
	}
	k.outcome <- saving{err: err}
}
