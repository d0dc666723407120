// Package phases keeps where the time of each pod's start went. The Book has it of each pod, for one who asks about
// that pod, and its Metrics have the same figures of all pods together. The workers, executor and the store note the
// phases; package images notes the pulls, which the store leaves out of a pod's start where the objective for starts
// does.
//
// The Book is in memory and bounded: of each pod it has the last time of each phase, and of each container in it.
package phases

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// Book has the phases of pods. Its methods may be called by anyone; a nil Book keeps nothing.
type Book struct {
	metrics *Metrics

	mu    sync.Mutex
	pods  map[types.UID][]passed
	pulls map[types.UID]*pulls
}

// passed is one phase that went well.
type passed struct {
	phase     Phase
	container string
	ended     time.Time
	took      time.Duration
}

// New returns a book of nothing, which counts in metrics; nil counts nothing.
func New(metrics *Metrics) *Book {
	return &Book{metrics: cmp.Or(metrics, NewMetrics(nil)), pods: map[types.UID][]passed{}, pulls: map[types.UID]*pulls{}}
}

// Passed notes and counts that a pod has gone through a phase, in the place of what was noted of it before. The
// container is the one that it is about, empty for the pod as a whole. A time that is negative, as when the wall clock
// was set back, counts as none.
func (b *Book) Passed(uid types.UID, container string, phase Phase, ended time.Time, took time.Duration) {
	if b == nil {
		return
	}
	took = max(took, 0)
	b.metrics.passed(phase, took)
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.DeleteFunc(b.pods[uid], func(p passed) bool { return p.phase == phase && p.container == container })
	b.pods[uid] = append(list, passed{phase: phase, container: container, ended: ended, took: took})
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
	delete(b.pulls, uid)
}
