// Package rotation gives the secrets on the disk another key: who keeps secrets seals them anew, each on its own, between the
// two steps of a sealing.Keyring. A rotation that fails or is cut short at any point leaves everything readable, for both keys
// are in the file until all is done, and the next one, or the next start of the process, goes on with it.
package rotation

import (
	"context"
	"fmt"

	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
)

// Holder keeps secrets on the disk; localsource and filesource are such.
type Holder interface {
	// Name is the name of the source.
	Name() string
	// Reseal seals them all with the key that seals now, and returns how many files were written for it.
	Reseal(ctx context.Context) (files int, err error)
}

// Rotation rotates the key of a keyring.
type Rotation struct {
	keys    *sealing.Keyring
	holders []Holder
	// turn is taken by the one that rotates.
	turn chan struct{}
}

// New returns the rotation of a keyring with which these seal, and nobody else.
func New(keys *sealing.Keyring, holders ...Holder) *Rotation {
	return &Rotation{keys: keys, holders: holders, turn: make(chan struct{}, 1)}
}

// Rotate seals everything with a new key and removes the old one. It returns how many files were written and the name of the
// key; none when there is no key, since nothing was sealed yet. It fails with a *sealing.FileError when the key file cannot be
// used, with the error of a holder, or with that of ctx, and is then to be done again.
func (r *Rotation) Rotate(ctx context.Context) (files int, key string, err error) {
	return r.alone(ctx, r.keys.Begin)
}

// Resume goes on with a rotation that was cut short, if there is one. It fails as Rotate does.
func (r *Rotation) Resume(ctx context.Context) error {
	if rotating, err := r.keys.Rotating(); err != nil || !rotating {
		return err
	}
	_, _, err := r.alone(ctx, func() error { return nil })
	return err
}

// alone begins a rotation and ends it, while no other does.
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
			return files, "", fmt.Errorf("encrypting the secrets of the source %s with the new key: %w: both keys are kept; try again", holder.Name(), err)
		}
	}
	if err := r.keys.Finish(); err != nil {
		return files, "", err
	}
	key, err = r.keys.Current()
	return files, key, err
}
