package mux

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// merge compares a reading with the source's previous pods, publishes the difference, and returns the changes of pods.
// It records in the state why it rejects pods. The mux is locked.
func (m *Mux) merge(name string, state *sourceState, reading *source.Reading) []podset.Change {
	began := m.cfg.Clock.Now()
	full := reading.Op == podset.None
	if full {
		clear(state.refused)
	}
	pods, found := m.admit(name, state, reading, began)
	back := state.back(reading)
	var changes []podset.Change
	if full {
		merged := podset.Merge(state.set, pods)
		state.set, changes = merged.Set, merged.List
	} else {
		changes = podset.MergePart(state.set, reading.Op, pods)
	}
	changes = withLives(changes, back)
	m.merges++
	p := publication{
		m:       m,
		source:  name,
		state:   state,
		reading: reading,
		found:   found,
		began:   began,
		merges:  map[string]merge{},
	}
	if full {
		// Objects precede pods, so that a subscriber that has a pod finds the objects that it refers to.
		p.mergeObjects()
	}
	for _, change := range changes {
		p.publish(change)
	}
	p.end()
	m.cfg.Metrics.merged(name, m.cfg.Clock.Since(began), changes)
	return changes
}

// refusals returns why pods of the source are rejected.
func (s *sourceState) refusals() []source.Error { return slices.Collect(maps.Values(s.refused)) }

// admit rejects the pods of a reading whose UID is that of another source's pod. It returns the others, and the origin
// of those that are not published yet. The mux is locked.
func (m *Mux) admit(
	name string,
	state *sourceState,
	reading *source.Reading,
	now time.Time,
) ([]*v1.Pod, map[types.UID]source.Pod) {
	found := map[types.UID]source.Pod{}
	pods := make([]*v1.Pod, 0, len(reading.Pods))
	for _, p := range reading.Pods {
		if reading.Op == podset.Remove {
			delete(state.refused, p.UID)
			pods = append(pods, p.Pod)
			continue
		}
		_, ours := state.published[p.UID]
		owner, taken := name, ours
		if !ours {
			owner, taken = m.owners[p.UID]
			found[p.UID] = p
		}
		if taken && owner != name {
			state.refused[p.UID] = source.Error{
				Path:   p.Path,
				Pod:    p.Namespace + "/" + p.Name,
				Field:  "metadata.uid",
				SeenAt: now,
				Message: fmt.Sprintf(
					"the UID %s is that of a pod of the source %q; this one is left out: give it another",
					p.UID,
					owner,
				),
			}
			continue
		}
		delete(state.refused, p.UID)
		pods = append(pods, p.Pod)
	}
	return pods, found
}

// back returns the published pods of a reading that were gone from their file in between, because their source reports
// another life. It records the origin and the life of each pod. An unchanged pod that has moved to another file has not
// been gone. The mux is locked.
func (s *sourceState) back(reading *source.Reading) []podset.Change {
	var changes []podset.Change
	for _, p := range reading.Pods {
		known, ours := s.published[p.UID]
		if !ours || reading.Op == podset.Remove || (known.sourceLife == p.Life && known.path == p.Path) {
			continue
		}
		if known.path == p.Path && p.Life != "" {
			changes = append(changes, podset.Change{Op: podset.Add, Old: s.set[p.UID], New: p.Pod})
		}
		known.sourceLife, known.path = p.Life, p.Path
		s.published[p.UID] = known
	}
	return changes
}

// withLives merges the pods that are back into the changes of a merge. Other changes of such a pod are part of its
// addition.
func withLives(changes, back []podset.Change) []podset.Change {
	if len(back) == 0 {
		return changes
	}
	added := make(map[types.UID]bool, len(back))
	for _, change := range back {
		added[change.UID()] = true
	}
	return append(slices.DeleteFunc(changes, func(c podset.Change) bool { return added[c.UID()] }), back...)
}

// publication publishes the changes of one merge.
type publication struct {
	m       *Mux
	source  string
	state   *sourceState
	reading *source.Reading
	// found maps the pods of the reading that are not published yet to their origin.
	found  map[types.UID]source.Pod
	began  time.Time
	merges map[string]merge
}

// merge is the span of a merge in the trace of one file. A merge of several files is part of several traces.
type merge struct {
	ctx  context.Context //nolint:containedctx // it lives as long as the merge
	span trace.Span
}

// publish publishes one change, with its trace.
func (p *publication) publish(change podset.Change) {
	uid := change.UID()
	before, known := p.state.published[uid]
	pod, path := change.New, before.path
	if change.Op == podset.Remove {
		pod = change.Old
	} else if !known {
		path = p.found[uid].Path
		before.sourceLife = p.found[uid].Life
	}
	ctx, span := telemetry.Start(p.mergeOf(path).ctx, p.m.cfg.Tracer, "publish",
		telemetry.Subject{Namespace: pod.Namespace, Pod: pod.Name, UID: string(uid)})
	defer span.End()
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrOp.String(change.Op.String()), telemetry.AttrSource.String(p.source))
	}
	p.m.note(
		ctx,
		slog.LevelInfo,
		"published",
		telemetry.KeyOp,
		change.Op.String(),
		telemetry.KeyPod,
		pod.Namespace+"/"+pod.Name,
		telemetry.KeyPodUID,
		string(uid),
		telemetry.KeySource,
		p.source,
		telemetry.KeyFile,
		path,
	)

	if change.Op == podset.Remove {
		gone := before.Entry
		gone.Pod = withOp(before.Pod, configv1.Op_OP_REMOVE)
		gone.Pod.Traceparent = telemetry.Traceparent(ctx)
		delete(p.state.published, uid)
		delete(p.m.owners, uid)
		p.m.level.DeleteWith(string(uid), gone)
		return
	}
	seen, life := before.seen, before.Pod.GetLife()
	if seen == "" || change.Op == podset.Add {
		seen = p.began.Format(time.RFC3339Nano)
	}
	if change.Op == podset.Add && p.state.ready {
		// A life at the start would restart pods that have been running since before this process.
		life = p.m.epoch + "/" + strconv.FormatUint(p.m.merges, 10)
	}
	data, err := annotated(pod, p.source, seen).Marshal()
	if err != nil {
		// A decoded and validated pod can always be encoded. Otherwise its published version stays.
		telemetry.Fail(span, err)
		p.m.note(
			ctx,
			slog.LevelError,
			"cannot encode the pod; it stays as it was",
			telemetry.KeyPodUID,
			string(uid),
			telemetry.KeyError,
			err,
		)
		return
	}
	entry := Entry{
		Pod: &configv1.PodUpdate{
			Op:          wireOp(change.Op),
			Source:      p.source,
			Pod:         data,
			Traceparent: telemetry.Traceparent(ctx),
			Life:        life,
		},
		name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name},
		// Only its status has changed.
		desire:   before.desire,
		ends:     pod.DeletionTimestamp != nil,
		restored: before.restored,
	}
	if change.Op != podset.Reconcile {
		entry.desire, entry.restored = p.m.merges, change.Op == podset.Restore
	}
	p.state.published[uid] = published{Entry: entry, path: path, seen: seen, sourceLife: before.sourceLife}
	p.m.owners[uid] = p.source
	p.m.level.Put(string(uid), entry)
}

// mergeOf returns the span of this merge in the trace of the file that caused a change. A change whose file did not
// change, because another file with the same pod was removed, belongs to the only file that did, if there is only one.
func (p *publication) mergeOf(path string) merge {
	cause, known := p.reading.Causes[path]
	if !known && len(p.reading.Causes) == 1 {
		for path, cause = range p.reading.Causes {
			known = true
		}
	}
	if !known {
		path, cause = "", context.Background()
	}
	if m, begun := p.merges[path]; begun {
		return m
	}
	ctx, span := p.m.cfg.Tracer.Start(cause, "merge", trace.WithTimestamp(p.began))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrSource.String(p.source))
	}
	p.merges[path] = merge{ctx: ctx, span: span}
	return p.merges[path]
}

func (p *publication) end() {
	for _, m := range p.merges {
		m.span.End()
	}
}

// annotated returns a copy of the pod with the annotations of its source.
func annotated(pod *v1.Pod, source, seen string) *v1.Pod {
	out := *pod
	out.Annotations = make(map[string]string, len(pod.Annotations)+2)
	maps.Copy(out.Annotations, pod.Annotations)
	out.Annotations[podset.AnnotationSource] = source
	out.Annotations[podset.AnnotationSeen] = seen
	return &out
}

// wireOp converts an operation to that of the contract.
func wireOp(op podset.Op) configv1.Op {
	switch op {
	case podset.Add:
		return configv1.Op_OP_ADD
	case podset.Update:
		return configv1.Op_OP_UPDATE
	case podset.Delete:
		return configv1.Op_OP_DELETE
	case podset.Remove:
		return configv1.Op_OP_REMOVE
	case podset.Restore:
		return configv1.Op_OP_RESTORE
	case podset.Reconcile:
		return configv1.Op_OP_RECONCILE
	case podset.None:
		return configv1.Op_OP_UNSPECIFIED
	default:
		return configv1.Op_OP_UNSPECIFIED
	}
}
