package evictionbook

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// meanwhile returns the file for the evictions of the time in which the book cannot be read, beside the spare file;
// empty if there is none. It is added to the book, while the spare file replaces it.
func (b *Book) meanwhile() string {
	if b.cfg.Spare == "" {
		return ""
	}
	extension := filepath.Ext(b.cfg.Spare)
	return strings.TrimSuffix(b.cfg.Spare, extension) + "-meanwhile" + extension
}

// recall adds the evictions of an earlier process that could not read the book.
func (b *Book) recall() {
	data, err := os.ReadFile(b.meanwhile())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	entries := map[types.UID]podstore.Eviction{}
	if err == nil {
		data, err = statedir.Checked(data, b.cfg.Node)
	}
	if err == nil {
		err = json.Unmarshal(data, &entries)
	}
	if err != nil {
		b.cfg.Logger.Error("the record of the pods that were evicted while evictions could not be read is damaged: these pods start again if a source still names them",
			telemetry.KeyFile, b.meanwhile(), telemetry.KeyError, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(entries, b.ofAnotherBoot)
	b.entries = entries
	b.version++
}

// keep writes the present evictions to the file of meanwhile, unless they are there.
func (b *Book) keep() {
	if b.meanwhile() == "" {
		return
	}
	b.mu.Lock()
	version, entries := b.version, maps.Clone(b.entries)
	b.mu.Unlock()
	if version == b.kept {
		return
	}
	data, err := b.encode(entries)
	if err == nil {
		err = statedir.ReplaceFile(b.meanwhile(), data, fileMode)
	}
	if err != nil {
		b.cfg.Logger.Error("evictions are neither read nor kept: a syncloop that is killed now would start pods again that it evicts meanwhile",
			telemetry.KeyFile, b.meanwhile(), telemetry.KeyError, err)
		return
	}
	b.kept = version
}

// readAgain tries a file that could not be read, and returns whether the book is complete. A disk may hang for any
// time, in which evictions are kept, so another goroutine reads. There is one at a time, and it ends with its read.
func (b *Book) readAgain() bool {
	if b.Unread() == nil {
		return true
	}
	b.keep()
	select {
	case <-b.attempt:
		b.attempt = b.tryToRead()
	default:
	}
	timer := b.cfg.Clock.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-b.attempt:
	case <-timer.C():
	}
	return b.Unread() == nil
}

// tryToRead reads the file in a goroutine, and returns a channel that is closed at its end.
func (b *Book) tryToRead() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.read()
		if b.Unread() == nil {
			b.cfg.Logger.Info("the record of the evicted pods is read", telemetry.KeyFile, b.cfg.Path, "pods", len(b.UIDs()))
			b.writer.request()
		}
	}()
	return ended
}
