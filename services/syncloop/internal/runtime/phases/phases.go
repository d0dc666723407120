// Package phases records the durations of the phases of pod starts. A Book has them for each pod, and its Metrics for
// all pods. The workers, executor and the store record the phases; package images records the pulls, which the
// objective for pod starts excludes.
//
// A Book is in memory and bounded: it keeps only the last duration of each phase of each pod and container.
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

// Book holds the phases of pods. Its methods may be called from any goroutine; a nil Book records nothing.
type Book struct {
	metrics *Metrics

	mu    sync.Mutex
	pods  map[types.UID][]passed
	pulls map[types.UID]*pulls
}

// passed is one successful phase.
type passed struct {
	phase     Phase
	container string
	ended     time.Time
	took      time.Duration
}

// New returns an empty book that counts in metrics; nil counts nothing.
func New(metrics *Metrics) *Book {
	return &Book{metrics: cmp.Or(metrics, NewMetrics(nil)), pods: map[types.UID][]passed{}, pulls: map[types.UID]*pulls{}}
}

// Passed records and counts that a pod has passed a phase. It replaces the last record of that phase. container is
// empty for a phase of the pod. A negative duration, as after a clock change, counts as zero.
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

// Forget drops the phases of a pod.
func (b *Book) Forget(uid types.UID) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
	delete(b.pulls, uid)
}
