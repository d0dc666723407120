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
	// saveEvery is the shortest time between two writes: a hundred pods that come at once are a few writes.
	saveEvery = time.Second
	// saveAgain is how long after a write that failed it is tried again, if nothing changes before.
	saveAgain = 10 * time.Second
)

// keeper writes the checkpoint, apart from the goroutine that gives the pods: a slow disk delays no pod.
type keeper struct {
	path, node string
	clock      clock.WithTicker
	logger     *slog.Logger
	metrics    *Metrics
	// latest has the pods that are to be written next. It holds one: newer ones replace those that are not written yet.
	latest chan map[types.UID]*v1.Pod
	// outcome has what came of the last write. It holds one: a newer one replaces one that nobody has taken yet.
	outcome chan saving
	// written is what the file holds; nil when that is not known.
	written []byte
}

// saving is what came of a write; err is nil when it went well.
type saving struct{ err error }

func newKeeper(cfg Config) *keeper {
	return &keeper{
		path: cfg.Checkpoint, node: cfg.Node, clock: cfg.Clock, logger: cfg.Logger, metrics: cfg.Metrics,
		latest: make(chan map[types.UID]*v1.Pod, 1), outcome: make(chan saving, 1),
	}
}

// start begins to write what is handed over; what it returns ends that, once the last pods that were handed over are
// written.
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

// keep hands over all pods, which must not be changed any more. It never waits; it is called by one goroutine.
func (k *keeper) keep(pods map[types.UID]*v1.Pod) {
	select {
	case <-k.latest:
	default:
	}
	k.latest <- pods
}

// run writes what it is handed until the end, and then once more what is left.
func (k *keeper) run(end <-chan struct{}) {
	// unsaved are pods that could not be written, nil when there are none.
	var unsaved map[types.UID]*v1.Pod
	for {
		again, stop := k.after(saveAgain, unsaved != nil)
		select {
		case <-end:
			stop()
			k.last(unsaved)
			return
		case unsaved = <-k.latest:
		case <-again:
		}
		stop()
		err := k.save(unsaved)
		if err == nil {
			unsaved = nil
		}
		k.tell(err)
		pause, stop := k.after(saveEvery, true)
		select {
		case <-pause:
		case <-end:
		}
		stop()
	}
}

// after returns a channel that has something after a while, or never; stop gives it up.
func (k *keeper) after(d time.Duration, ever bool) (c <-chan time.Time, stop func()) {
	if !ever {
		return nil, func() {}
	}
	timer := k.clock.NewTimer(d)
	return timer.C(), func() { timer.Stop() }
}

// last writes what was handed over last, or else what could not be written before.
func (k *keeper) last(unsaved map[types.UID]*v1.Pod) {
	select {
	case unsaved = <-k.latest:
	default:
	}
	if unsaved == nil {
		return
	}
	if err := k.save(unsaved); err != nil {
		// There is nobody left to tell it to.
		k.logger.Warn("cannot keep the pods of the API server", telemetry.KeyFile, k.path, telemetry.KeyError, err)
	}
}

// save writes pods, unless the file holds them.
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

// tell says what came of a write. It never waits.
func (k *keeper) tell(err error) {
	select {
	case <-k.outcome:
	default:
	}
	k.outcome <- saving{err: err}
}
