package filesource

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// saveDelay is how long changes are gathered before they are written to the checkpoint. The pods are long published
// then; what a crash within this time loses is only the last good version of a file that is broken before the restart.
const saveDelay = 500 * time.Millisecond

// checkpointMode lets only the owner read the pods, whose environment may hold what others should not see.
const checkpointMode = 0o600

// keeper writes the checkpoint, apart from the goroutine that reads the manifests: a slow disk delays no pod.
type keeper struct {
	path, node string
	seals      *sealing.Keyring
	clock      clock.WithTicker
	logger     *slog.Logger
	// latest has what is to be written next. It holds one: a newer state replaces one that is not written yet.
	latest chan map[string]staticpod.Held
	// reseals are who asks for another key, and ended is closed when nobody does that any more.
	reseals chan resealing
	ended   chan struct{}
	// written tells what the file holds; zero when that is not known.
	written [sha256.Size]byte
}

// resealing is a call of Reseal, and what it came to.
type resealing chan<- resealed

type resealed struct {
	files int
	err   error
}

func newKeeper() *keeper {
	return &keeper{latest: make(chan map[string]staticpod.Held, 1), reseals: make(chan resealing), ended: make(chan struct{})}
}

// Reseal encrypts the secrets of the checkpoint with the key that seals now, and returns how many files were written for it.
// It needs the source to run, and waits for that.
func (s *Source) Reseal(ctx context.Context) (files int, err error) {
	done := make(chan resealed, 1)
	select {
	case s.keeper.reseals <- done:
	case <-s.keeper.ended:
		return 0, errors.New("configmux is ending: try again when it is back")
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case r := <-done:
		return r.files, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// keep hands over a new state. It never waits; it is called by one goroutine.
func (k *keeper) keep(manifests map[string]staticpod.Held) {
	select {
	case <-k.latest:
	default:
	}
	k.latest <- manifests
}

// run writes what it is handed until the end, and then once more what is left.
func (k *keeper) run(end <-chan struct{}) {
	for {
		select {
		case <-end:
			k.saveLatest()
			return
		case done := <-k.reseals:
			files, err := k.reseal()
			done <- resealed{files, err}
		case manifests := <-k.latest:
			timer := k.clock.NewTimer(saveDelay)
			select {
			case <-timer.C():
			case <-end:
			}
			timer.Stop()
			if !k.saveLatest() {
				k.save(manifests)
			}
		}
	}
}

// saveLatest writes what was handed over last, if anything was.
func (k *keeper) saveLatest() bool {
	select {
	case manifests := <-k.latest:
		k.save(manifests)
		return true
	default:
		return false
	}
}

func (k *keeper) save(manifests map[string]staticpod.Held) {
	// Without a key that can be used there is none to name, and sealing says why.
	key, _ := k.seals.Current()
	sum, err := sumOf(k.node, manifests, key)
	if err == nil && sum == k.written {
		return
	}
	data, unsealed := encode(k.node, manifests, k.seals.Seal)
	if data == nil {
		err = unsealed
	} else {
		err = statedir.WriteFileAtomic(k.path, data, checkpointMode)
	}
	if err != nil {
		k.logger.Warn("cannot keep what the manifests have; a manifest that is broken when this process restarts loses it",
			telemetry.KeyFile, k.path, telemetry.KeyError, err)
		return
	}
	k.written = sum
	if unsealed != nil {
		k.written = [sha256.Size]byte{}
		k.logger.Warn("cannot keep the secrets of the manifests; those of a manifest that is broken when this process restarts are lost until it is mended",
			telemetry.KeyFile, k.path, telemetry.KeyError, unsealed)
	}
}

// reseal seals what is in the file with the key that seals now. A box that cannot be opened stays as it is.
func (k *keeper) reseal() (files int, err error) {
	c, err := readCheckpoint(k.path)
	if err != nil {
		// There is nothing in it that could be read with any key.
		k.logger.Warn("cannot seal the last good versions of the manifests anew", telemetry.KeyError, err)
		return 0, nil
	}
	current, err := k.seals.Current()
	if err != nil {
		return 0, err
	}
	changed := false
	for _, kept := range c.Objects {
		for i, o := range kept {
			if o.Sealed == nil || o.Sealed.Key == current {
				continue
			}
			data, err := k.seals.Open(*o.Sealed, o.about())
			if err != nil {
				k.logger.Warn("cannot seal a secret of the manifests anew", telemetry.KeyObject, o.about(), telemetry.KeyError, err)
				continue
			}
			box, err := k.seals.Seal(data, o.about())
			if err != nil {
				return 0, err
			}
			kept[i].Sealed, changed = &box, true
		}
	}
	if !changed {
		return 0, nil
	}
	data, err := json.Marshal(c)
	if err == nil {
		err = statedir.WriteFileAtomic(k.path, data, checkpointMode)
	}
	if err != nil {
		return 0, err
	}
	k.written = [sha256.Size]byte{}
	return 1, nil
}
