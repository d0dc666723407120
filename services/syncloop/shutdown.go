package main

import (
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/shutdown"
)

// shutdownOf makes what ends pods before the machine goes down, in the boot that is named.
func shutdownOf(e *engine, book *evictionbook.Book, boot string) *shutdown.Ender {
	cfg := shutdown.Config{Store: e.store, Book: book, Workers: e.pool, Boot: boot, Clock: clock.RealClock{}}
	if e.statuses != nil {
		cfg.Unsent = e.statuses.manager.Unsent
	}
	return shutdown.New(cfg)
}
