package syncloop

import (
	"context"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
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

// openBooks opens the books in the state directory. A damaged one delays nothing.
func openBooks(h *host, parts *components.Group) books {
	reserve, err := statedir.NewReserve(filepath.Join(h.cfg.StateDir, "syncloop.reserve"))
	if err != nil {
		h.logger.Warn("no disk space is reserved for the record of evicted pods; it is tried again",
			telemetry.KeyError, err)
	}
	parts.Run("disk reserve", func(ctx context.Context) error { return reserve.Run(ctx, clock.RealClock{}) })
	file := func(name string) string {
		path := filepath.Join(h.cfg.StateDir, name)
		h.cfg.Starting.At("read " + path)
		return path
	}
	evictions := evictionbook.Open(evictionbook.Config{
		Path: file("evictions.json"), Spare: spareFor(h.cfg.StateDir, h.cfg.Listen), Node: h.cfg.NodeName, Boot: h.boot, Reserve: reserve,
		Clock: clock.RealClock{}, Logger: h.logger,
	})
	parts.OnClose("record of the evicted pods", evictions.Close)
	endings := gracebook.Open(gracebook.Config{
		Dir: file("endings"), Node: h.cfg.NodeName, Boot: h.boot, Now: boottime.Now, Logger: h.logger,
	})
	resized := resizes.Open(file("resizes"), h.cfg.NodeName, h.logger)
	return books{evictions: evictions, endings: endings, resizes: resized}
}

// spareFor returns the file that has the evictions while the disk of the state directory cannot be written: beside the
// socket of syncloop, in a directory in which no other part may write. It is empty if that is on the same disk.
func spareFor(stateDir, listen string) string {
	dir := filepath.Dir(strings.TrimPrefix(listen, "unix://"))
	var state, run unix.Stat_t
	if unix.Stat(stateDir, &state) != nil || unix.Stat(dir, &run) != nil || state.Dev == run.Dev {
		return ""
	}
	return filepath.Join(dir, "evictions.json")
}
