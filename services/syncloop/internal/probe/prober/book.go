package prober

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
	suffix   = ".json"
)

// The results in files and logs.
const (
	wordSuccess = "success"
	wordFailure = "failure"
)

// wordOf returns a result in one word; empty for none.
func wordOf(result decide.ProbeResult) string {
	switch result {
	case decide.Success:
		return wordSuccess
	case decide.Failure:
		return wordFailure
	case decide.Unknown:
	}
	return ""
}

// Kept is a result that survives the process.
type Kept struct {
	// Result is the result of the probe.
	Result decide.ProbeResult
	// Since is the start of that result.
	Since time.Time
}

// MarshalJSON implements json.Marshaler.
func (k Kept) MarshalJSON() ([]byte, error) {
	return json.Marshal(keptFile{Result: wordOf(k.Result), Since: k.Since})
}

// UnmarshalJSON implements json.Unmarshaler. It fails for an invalid result.
func (k *Kept) UnmarshalJSON(data []byte) error {
	var file keptFile
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	switch k.Since = file.Since; file.Result {
	case wordSuccess:
		k.Result = decide.Success
	case wordFailure:
		k.Result = decide.Failure
	default:
		return fmt.Errorf("result %q is neither %s nor %s", file.Result, wordSuccess, wordFailure)
	}
	return nil
}

type keptFile struct {
	Result string    `json:"result"`
	Since  time.Time `json:"since"`
}

// results are the results of one container.
type results map[probecalls.Kind]Kept

// record is the file of a pod: the results of its containers, by ID.
type record struct {
	Containers map[string]results `json:"containers"`
}

// Book stores the results of probes on disk, so that a ready container stays ready across a restart of this process,
// and a startup probe that has succeeded is not repeated. There is one small file for each pod, written when a result
// changes and before it is published. It must survive this process but not the machine, whose reboot ends every
// container, so nothing waits for the disk.
//
// Its methods are safe for concurrent use; those that write wait only for the file of their own pod.
type Book struct {
	dir string

	mu   sync.Mutex
	pods map[types.UID]*page
}

// page is the file of one pod.
type page struct {
	mu     sync.Mutex // held while writing, to order the versions of the file
	record record
	// disk writes the file. A disk that hangs keeps no result from its pod.
	disk statedir.Writer
	// torn is true after the page was removed from the book.
	torn bool
}

// OpenBook opens the book in a directory, which it creates if necessary. It logs and removes an invalid file: the
// probes of its pod start again. If the directory cannot be created or read, the log says so, and all probes start
// again.
func OpenBook(dir string, logger *slog.Logger) *Book {
	b := &Book{dir: dir, pods: map[types.UID]*page{}}
	files, err := statedir.OpenDir(dir)
	if err != nil {
		logger.Warn("the stored results of probes cannot be read; probes start again",
			telemetry.KeyFile, dir, telemetry.KeyError, err)
	}
	for _, file := range files {
		path := filepath.Join(dir, file.Name())
		uid, named := strings.CutSuffix(file.Name(), suffix)
		if statedir.IsAside(file.Name()) {
			continue
		}
		if !named { // half written
			if err := os.Remove(path); err != nil {
				logger.Warn("cannot remove a file that is not used", telemetry.KeyFile, path, telemetry.KeyError, err)
			}
			continue
		}
		var r record
		if err := statedir.LoadCache(path, "", &r, nil); err != nil {
			logger.Warn("the stored results of a pod's probes are damaged; its probes start again", telemetry.KeyPodUID, uid, telemetry.KeyError, err)
			continue
		}
		b.pods[types.UID(uid)] = &page{record: r}
	}
	return b
}

// all returns a copy of the results, by pod and container.
func (b *Book) all() map[types.UID]map[string]results {
	b.mu.Lock()
	pages := maps.Clone(b.pods)
	b.mu.Unlock()
	all := make(map[types.UID]map[string]results, len(pages))
	for uid, p := range pages {
		all[uid] = p.containers()
	}
	return all
}

func (p *page) containers() map[string]results {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]results, len(p.record.Containers))
	for id, kept := range p.record.Containers {
		all[id] = maps.Clone(kept)
	}
	return all
}

// put stores a result.
func (b *Book) put(uid types.UID, container string, kind probecalls.Kind, kept Kept) error {
	for {
		b.mu.Lock()
		p := b.pods[uid]
		if p == nil {
			p = &page{record: record{Containers: map[string]results{}}}
			b.pods[uid] = p
		}
		b.mu.Unlock()
		done, err := b.putOn(p, uid, container, kind, kept)
		if done {
			return err
		}
	}
}

// putOn stores a result on a page; it is a no-op and returns false if the page was removed in the meantime.
func (b *Book) putOn(p *page, uid types.UID, container string, kind probecalls.Kind, kept Kept) (done bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.torn {
		return false, nil
	}
	if p.record.Containers[container] == nil {
		if p.record.Containers == nil {
			p.record.Containers = map[string]results{}
		}
		p.record.Containers[container] = results{}
	}
	p.record.Containers[container][kind] = kept
	return true, b.write(uid, p)
}

// keepOnly drops the results of a pod's containers except those with the given IDs, and the file if none is left.
func (b *Book) keepOnly(uid types.UID, ids []string) error {
	b.mu.Lock()
	p := b.pods[uid]
	b.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := len(p.record.Containers)
	maps.DeleteFunc(p.record.Containers, func(id string, _ results) bool { return !slices.Contains(ids, id) })
	switch after := len(p.record.Containers); {
	case p.torn:
		return nil
	case after > 0 && after == before:
		return nil
	case after > 0:
		return b.write(uid, p)
	}
	err := p.disk.Write(func() error { return os.Remove(b.path(uid)) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the results of probes: %w", err)
	}
	p.torn = true
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
	return nil
}

// write writes a page. The caller holds its lock.
func (b *Book) write(uid types.UID, p *page) error {
	data, err := json.Marshal(p.record)
	if err == nil {
		data, err = statedir.WithChecksum(data, "")
	}
	if err != nil {
		return fmt.Errorf("keep the result of a probe: %w", err)
	}
	// It is not synced: see the comment of Book.
	err = p.disk.Write(func() error {
		return statedir.WriteIn(b.dir, func() error { return statedir.ReplaceFile(b.path(uid), data, fileMode) })
	})
	if err != nil {
		return fmt.Errorf("keep the result of a probe: %w", err)
	}
	return nil
}

func (b *Book) path(uid types.UID) string { return filepath.Join(b.dir, string(uid)+suffix) }
