package filesource

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// saveDelay is how long changes are collected before they are written to the checkpoint. The pods are already published
// then; a crash within this time loses only the last good version of a file that is broken before the restart.
const saveDelay = 500 * time.Millisecond

// checkpointMode lets only the owner read the pods, because their environment may be confidential.
const checkpointMode = 0o600

// keeper writes the checkpoint in its own goroutine, so that a slow disk delays no pod.
type keeper struct {
	path, node string
	seals      *sealing.Keyring
	clock      clock.WithTicker
	logger     *slog.Logger
	// latest holds the state to write next. Its capacity is one: a newer state replaces an unwritten one.
	latest chan map[string]staticpod.Held
	// reseals carries calls of Reseal, and ended is closed when the keeper has ended.
	reseals chan resealing
	ended   chan struct{}
	// held is the last state that was to be written; nil before the first.
	held map[string]staticpod.Held
	// written is the digest of the file's content; zero if unknown.
	written [sha256.Size]byte
}

// resealing receives the result of a call of Reseal.
type resealing chan<- resealed

type resealed struct {
	files int
	err   error
}

func newKeeper() *keeper {
	return &keeper{
		latest:  make(chan map[string]staticpod.Held, 1),
		reseals: make(chan resealing),
		ended:   make(chan struct{}),
	}
}

// Reseal encrypts the secrets of the checkpoint with the current key, and returns the number of written files. It waits
// for the source to run.
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

// keep passes a new state to the keeper. It never blocks; one goroutine calls it.
func (k *keeper) keep(manifests map[string]staticpod.Held) {
	select {
	case <-k.latest:
	default:
	}
	k.latest <- manifests
}

// run writes states until the end, and then the last one.
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

// saveLatest writes the last state, if there is an unwritten one.
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
	k.held = manifests
	// Without a usable key, sealing returns the error.
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
		k.logger.Warn("cannot save the content of the manifests; a manifest that is broken when this process restarts loses its last good version",
			telemetry.KeyFile, k.path, telemetry.KeyError, err)
		return
	}
	k.written = sum
	if unsealed != nil {
		k.written = [sha256.Size]byte{}
		k.logger.Warn("cannot save the secrets of the manifests; those of a manifest that is broken when this process restarts are missing until it is corrected",
			telemetry.KeyFile, k.path, telemetry.KeyError, unsealed)
	}
}

// reseal seals the secrets in the file with the current key, and reads them back. It fails if one cannot be read,
// because the caller then drops the other keys.
func (k *keeper) reseal() (files int, err error) {
	c, err := readCheckpoint(k.path)
	if err != nil {
		// The damaged file was set aside. What is known is written again, so that the next rotation finds it.
		k.written = [sha256.Size]byte{}
		if k.held != nil {
			k.save(k.held)
		}
		return 0, err
	}
	changed, err := k.resealIn(c)
	if err != nil || !changed {
		return 0, err
	}
	data, err := c.marshal()
	if err == nil {
		err = statedir.WriteFileAtomic(k.path, data, checkpointMode)
	}
	if err != nil {
		return 0, err
	}
	k.written = [sha256.Size]byte{}
	again, err := readCheckpoint(k.path)
	if err != nil {
		return 0, err
	}
	if changed, err = k.resealIn(again); err == nil && (changed || len(again.Objects) != len(c.Objects)) {
		err = fmt.Errorf("the file %s does not have what was written to it: check the disk", k.path)
	}
	return 1, err
}

// resealIn seals the secrets of a checkpoint with the current key, and reports whether that changed any.
func (k *keeper) resealIn(c checkpoint) (changed bool, err error) {
	current, err := k.seals.Current()
	if err != nil {
		return false, err
	}
	for _, kept := range c.Objects {
		for i, o := range kept {
			if o.Sealed == nil {
				continue
			}
			data, err := k.seals.Open(*o.Sealed, o.about())
			if err != nil {
				return false, fmt.Errorf("the secret %s/%s in %s cannot be read: %w", o.Namespace, o.Name, k.path, err)
			}
			if o.Sealed.Key == current {
				continue
			}
			box, err := k.seals.Seal(data, o.about())
			if err != nil {
				return false, err
			}
			kept[i].Sealed, changed = &box, true
		}
	}
	return changed, nil
}
