// Package phases keeps where the time of each pod's start went, for who asks about one pod: the metrics have the same figures
// of all pods together. Who notes a phase with package metrics notes it here, too: the workers, executor and the store.
//
// It is kept in memory, and so is bounded: of each pod the last time of each phase, and of each container in it.
package phases

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
)

// Book has the phases of pods. Its methods may be called by anyone; a nil Book keeps nothing.
type Book struct {
	mu   sync.Mutex
	pods map[types.UID][]passed
}

// passed is one phase that went well.
type passed struct {
	phase     metrics.Phase
	container string
	ended     time.Time
	took      time.Duration
}

// New returns a book of nothing.
func New() *Book { return &Book{pods: map[types.UID][]passed{}} }

// Passed notes that a pod has gone through a phase, in the place of what was noted of it before. The container is the one
// that it is about, empty for the pod as a whole.
func (b *Book) Passed(uid types.UID, container string, phase metrics.Phase, ended time.Time, took time.Duration) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.DeleteFunc(b.pods[uid], func(p passed) bool { return p.phase == phase && p.container == container })
	b.pods[uid] = append(list, passed{phase: phase, container: container, ended: ended, took: max(took, 0)})
}

// Of returns the phases of a pod in the order in which they ended.
func (b *Book) Of(uid types.UID) []*enginev1.StartPhase {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	list := slices.Clone(b.pods[uid])
	b.mu.Unlock()
	slices.SortStableFunc(list, func(x, y passed) int { return x.ended.Compare(y.ended) })
	var all []*enginev1.StartPhase
	for _, p := range list {
		all = append(all, &enginev1.StartPhase{
			Phase: string(p.phase), Container: p.container, EndedAt: timestamppb.New(p.ended), Took: durationpb.New(p.took),
		})
	}
	return all
}

// Forget drops a pod.
func (b *Book) Forget(uid types.UID) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
}
