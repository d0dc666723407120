// Package rotation replaces the key of the secrets on disk. Between the two steps of a sealing.Keyring, each holder
// seals its secrets with the new key. After a failure or an interruption at any point everything is readable, because
// both keys are in the file until the end, and the next rotation, or the next start of the process, continues.
package rotation

import (
	"context"
	"fmt"

	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
)

// Holder stores secrets on disk; localsource and filesource implement it.
type Holder interface {
	// Name is the name of the source.
	Name() string
	// Reseal seals all its secrets with the current key, and returns the number of written files.
	Reseal(ctx context.Context) (files int, err error)
}

// Rotation rotates the key of a keyring.
type Rotation struct {
	keys    *sealing.Keyring
	holders []Holder
	// turn is a semaphore for one rotation at a time.
	turn chan struct{}
}

// New returns the rotation of a keyring that only these holders use.
func New(keys *sealing.Keyring, holders ...Holder) *Rotation {
	return &Rotation{keys: keys, holders: holders, turn: make(chan struct{}, 1)}
}

// Rotate seals everything with a new key and removes the old one. It returns the number of written files and the name
// of the key; none if there is no key, because nothing was sealed yet. It fails with a *sealing.FileError if the key
// file is unusable, with the error of a holder, or with that of ctx, and must then be repeated.
func (r *Rotation) Rotate(ctx context.Context) (files int, key string, err error) {
	return r.alone(ctx, r.keys.Begin)
}

// Resume continues an interrupted rotation, if there is one. It fails as Rotate does.
func (r *Rotation) Resume(ctx context.Context) error {
	if rotating, err := r.keys.Rotating(); err != nil || !rotating {
		return err
	}
	_, _, err := r.alone(ctx, func() error { return nil })
	return err
}

// alone executes a rotation, one at a time.
func (r *Rotation) alone(ctx context.Context, begin func() error) (files int, key string, err error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return 0, "", ctx.Err()
	}
	if err := begin(); err != nil {
		return 0, "", err
	}
	for _, holder := range r.holders {
		n, err := holder.Reseal(ctx)
		files += n
		if err != nil {
			return files, "", fmt.Errorf(
				"encrypting the secrets of the source %s with the new key: %w: both keys are kept; try again",
				holder.Name(),
				err,
			)
		}
	}
	if err := r.keys.Finish(); err != nil {
		return files, "", err
	}
	key, err = r.keys.Current()
	return files, key, err
}
