package main

import (
	"path/filepath"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
)

// books are the records on disk of what a later process must know about pods but cannot observe.
type books struct {
	evictions *evictionbook.Book
	endings   *gracebook.Book
	resizes   *resizes.Book
}

// openBooks opens the books in the state directory.
func openBooks(h *host) (books, error) {
	evictions, err := evictionbook.Open(filepath.Join(h.cfg.StateDir, "evictions.json"))
	if err != nil {
		return books{}, err
	}
	if err := evictions.Booted(h.boot); err != nil {
		return books{}, err
	}
	endings, err := gracebook.Open(gracebook.Config{
		Dir: filepath.Join(h.cfg.StateDir, "endings"), Boot: h.boot, Now: boottime.Now,
	})
	if err != nil {
		return books{}, err
	}
	resized, err := resizes.Open(filepath.Join(h.cfg.StateDir, "resizes"), h.logger)
	if err != nil {
		return books{}, err
	}
	return books{evictions: evictions, endings: endings, resizes: resized}, nil
}
