package filesource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
)

// saveDelay is how long changes are gathered before they are written to the checkpoint. The pods are long published
// then; what a crash within this time loses is only the last good version of a file that is broken before the restart.
const saveDelay = 500 * time.Millisecond

// checkpointMode lets only the owner read the pods, whose environment may hold what others should not see.
const checkpointMode = 0o600

// checkpoint is what each manifest stood for, on disk: a manifest that is broken when the process starts keeps its last
// good pods too, and they keep running. Manifests that are good are never taken from it.
type checkpoint struct {
	// Node is the node whose pods these are. Those of another are of no use.
	Node string `json:"node"`
	// Manifests has, by path, the pods as the bytes of their Marshal methods.
	Manifests map[string][][]byte `json:"manifests"`
}

// encode returns the checkpoint of what each manifest stands for. Equal pods have equal bytes.
func encode(node string, manifests map[string][]*v1.Pod) ([]byte, error) {
	c := checkpoint{Node: node, Manifests: make(map[string][][]byte, len(manifests))}
	for path, pods := range manifests {
		for _, pod := range pods {
			data, err := pod.Marshal()
			if err != nil {
				return nil, fmt.Errorf("encode the pod %s of %s: %w", nameOf(pod), path, err)
			}
			c.Manifests[path] = append(c.Manifests[path], data)
		}
	}
	return json.Marshal(c)
}

// restore reads the checkpoint. Without one, or with that of another node, there is nothing to restore.
func restore(path, node string) (map[string][]*v1.Pod, []byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the checkpoint of the manifests: %w", err)
	}
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, nil, fmt.Errorf("decode the checkpoint of the manifests %s: %w", path, err)
	}
	if c.Node != node {
		return nil, nil, nil
	}
	manifests := make(map[string][]*v1.Pod, len(c.Manifests))
	for manifest, pods := range c.Manifests {
		for _, bytes := range pods {
			pod := &v1.Pod{}
			if err := pod.Unmarshal(bytes); err != nil {
				return nil, nil, fmt.Errorf("decode a pod in the checkpoint of the manifests %s: %w", path, err)
			}
			manifests[manifest] = append(manifests[manifest], pod)
		}
	}
	return manifests, data, nil
}

// startKeeper restores the checkpoint and begins to keep it; what it returns ends that, once the last state that was
// handed over is written.
func (s *Source) startKeeper() (stop func()) {
	restored, written, err := restore(s.cfg.Checkpoint, s.cfg.Node)
	if err != nil {
		s.cfg.Logger.Warn("starting without the last good versions of the manifests", telemetry.KeyError, err)
	}
	s.restored = s.allowed(restored)
	s.keeper = &keeper{
		path: s.cfg.Checkpoint, node: s.cfg.Node, clock: s.cfg.Clock, logger: s.cfg.Logger,
		latest: make(chan map[string][]*v1.Pod, 1), written: written,
	}
	// The end is not that of the process's context: the reader may hand over one more state after that.
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		s.keeper.run(end)
	}()
	return func() {
		close(end)
		<-done
	}
}

// allowed leaves out the pods that have what this configuration does not let them have: one that has become stricter counts
// for the last good versions too.
func (s *Source) allowed(manifests map[string][]*v1.Pod) map[string][]*v1.Pod {
	for path, pods := range manifests {
		manifests[path] = slices.DeleteFunc(pods, func(pod *v1.Pod) bool {
			return len(privilege.Check(pod, Name, s.cfg.Allowed)) > 0
		})
	}
	return manifests
}

// keep hands what each manifest stands for to the keeper.
func (s *Source) keep() {
	manifests := make(map[string][]*v1.Pod, len(s.files))
	for path, f := range s.files {
		if len(f.pods) > 0 {
			manifests[path] = f.pods
		}
	}
	s.keeper.keep(manifests)
}

// known returns what is known of a manifest; at the start that is what the checkpoint says.
func (s *Source) known(path string) *file {
	if f := s.files[path]; f != nil {
		return f
	}
	if pods := s.restored[path]; len(pods) > 0 {
		return &file{pods: pods}
	}
	return nil
}

// keeper writes the checkpoint, apart from the goroutine that reads the manifests: a slow disk delays no pod.
type keeper struct {
	path, node string
	clock      clock.WithTicker
	logger     *slog.Logger
	// latest has what is to be written next. It holds one: a newer state replaces one that is not written yet.
	latest chan map[string][]*v1.Pod
	// written is what the file holds.
	written []byte
}

// keep hands over a new state. It never waits; it is called by one goroutine.
func (k *keeper) keep(manifests map[string][]*v1.Pod) {
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

func (k *keeper) save(manifests map[string][]*v1.Pod) {
	data, err := encode(k.node, manifests)
	if err == nil && !bytes.Equal(data, k.written) {
		err = statedir.WriteFileAtomic(k.path, data, checkpointMode)
	}
	if err != nil {
		k.logger.Warn("cannot keep the pods of the manifests; a manifest that is broken when this process restarts loses its pods",
			telemetry.KeyFile, k.path, telemetry.KeyError, err)
		return
	}
	k.written = data
}
