package mux

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// ObjectEntry is one value of the stream of objects: exactly one of its fields is set. It is immutable after its
// publication.
type ObjectEntry struct {
	// Object is an object of one of the kinds, under the key of apiobject.Key.Path.
	Object *configv1.Object
	// Source is the state of a source, under the key of SourceKey.
	Source *configv1.SourceState
}

// publishedObject is an object as published.
type publishedObject struct {
	source.Object
	// from is its source.
	from string
	data []byte
	// seenAt is the time of its first publication.
	seenAt time.Time
}

func (m *Mux) announceObjects(name string, ready bool) {
	m.objects.Put(SourceKey(name), ObjectEntry{Source: &configv1.SourceState{Name: name, Ready: ready}})
}

// mergeObjects merges the objects of a full reading, and publishes the effective changes. The mux is locked.
func (p *publication) mergeObjects() {
	if slices.Equal(p.state.objects, p.reading.Objects) {
		return
	}
	p.state.objects = p.reading.Objects
	wanted := p.m.choose(p.source, p.reading, p.began)
	for _, key := range slices.SortedFunc(maps.Keys(p.m.effective), apiobject.Key.Compare) {
		if _, stays := wanted[key]; !stays {
			p.removeObject(key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(wanted), apiobject.Key.Compare) {
		p.putObject(key, wanted[key])
	}
}

// choose returns the effective objects of all sources, and records why others have no effect. Of two with the same key,
// that of the source that is configured first takes precedence. reading is the new reading of the source changed.
func (m *Mux) choose(changed string, reading *source.Reading, now time.Time) map[apiobject.Key]publishedObject {
	wanted := map[apiobject.Key]publishedObject{}
	for _, s := range m.cfg.Sources {
		state := m.sources[s.Name()]
		before := state.hidden
		state.hidden = nil
		for _, o := range state.objects {
			key := o.Key()
			first, taken := wanted[key]
			if !taken {
				wanted[key] = publishedObject{Object: o, from: s.Name()}
				continue
			}
			if o.IsApplied() {
				// The claim keeps its data when a manifest takes it over.
				first.Object.Object = first.WithUID(o.Claim.UID)
				wanted[key] = first
			}
			hidden := source.Error{
				Path:   o.Path,
				Object: key.String(),
				Field:  "metadata.name",
				SeenAt: now,
				Message: fmt.Sprintf(
					"the source %q has a %s too, in %s, which takes precedence; this one has no effect: remove one of the two, or rename it",
					first.from,
					key,
					first.Path,
				),
			}
			if i := slices.IndexFunc(
				before,
				func(e source.Error) bool { return e.Path == hidden.Path && e.Message == hidden.Message },
			); i >= 0 {
				hidden = before[i]
			}
			state.hidden = append(state.hidden, hidden)
		}
		if s.Name() != changed && !slices.Equal(before, state.hidden) {
			m.noteErrors(s.Name(), state, reading)
		}
	}
	return wanted
}

// removeObject publishes that an object is gone. Its content is not kept.
func (p *publication) removeObject(key apiobject.Key) {
	gone := p.m.effective[key]
	ctx, end := p.beginObject(key, gone.Path, gone.from, podset.Remove)
	defer end()
	delete(p.m.effective, key)
	p.m.objects.DeleteWith(key.Path(), ObjectEntry{Object: wireObject(key, gone.from, nil, telemetry.Traceparent(ctx))})
}

// putObject publishes a new or changed object.
func (p *publication) putObject(key apiobject.Key, wanted publishedObject) {
	before, known := p.m.effective[key]
	if known && before.Object.Object == wanted.Object.Object && before.from == wanted.from {
		before.Object = wanted.Object
		p.m.effective[key] = before
		return
	}
	data, err := wanted.Marshal()
	if err != nil {
		// A decoded and validated object can always be encoded. Otherwise its published version stays.
		p.m.note(
			context.Background(),
			slog.LevelError,
			"cannot encode the object; it stays as it was",
			telemetry.KeyObject,
			key.String(),
			telemetry.KeyError,
			err,
		)
		return
	}
	wanted.data, wanted.seenAt = data, p.began
	op := podset.Add
	if known {
		op, wanted.seenAt = podset.Update, before.seenAt
	}
	p.m.effective[key] = wanted
	if known && bytes.Equal(before.data, data) && before.from == wanted.from {
		return
	}
	ctx, end := p.beginObject(key, wanted.Path, wanted.from, op)
	defer end()
	p.m.objects.Put(key.Path(), ObjectEntry{Object: wireObject(key, wanted.from, data, telemetry.Traceparent(ctx))})
}

// beginObject starts the span of a change of an object, and logs and counts the change.
func (p *publication) beginObject(
	key apiobject.Key,
	path, from string,
	op podset.Op,
) (ctx context.Context, end func()) {
	ctx, span := p.m.cfg.Tracer.Start(p.mergeOf(path).ctx, "publish")
	if span.IsRecording() {
		span.SetAttributes(
			telemetry.AttrObject.String(key.String()),
			telemetry.AttrOp.String(op.String()),
			telemetry.AttrSource.String(from),
		)
	}
	p.m.note(
		ctx,
		slog.LevelInfo,
		"published",
		telemetry.KeyOp,
		op.String(),
		telemetry.KeyObject,
		key.String(),
		telemetry.KeySource,
		from,
		telemetry.KeyFile,
		path,
	)
	p.m.cfg.Metrics.objectChanges.WithLabelValues(from, kindName(key.Kind), opName(op)).Inc()
	return ctx, func() { span.End() }
}

func wireObject(key apiobject.Key, from string, data []byte, traceparent string) *configv1.Object {
	return &configv1.Object{
		Kind:        string(key.Kind),
		Namespace:   key.Namespace,
		Name:        key.Name,
		Source:      from,
		Object:      data,
		Traceparent: traceparent,
	}
}

// Objects returns summaries of the objects of a kind, or of all kinds if it is empty, sorted by kind, namespace and
// name. They contain no value of a secret.
func (m *Mux) Objects(kind apiobject.Kind) []*configv1.ObjectSummary {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*configv1.ObjectSummary
	for _, key := range slices.SortedFunc(maps.Keys(m.effective), apiobject.Key.Compare) {
		if kind == "" || kind == key.Kind {
			out = append(out, m.effective[key].summary(key))
		}
	}
	return out
}

func (o publishedObject) summary(key apiobject.Key) *configv1.ObjectSummary {
	created := o.CreatedAt
	if created.IsZero() {
		created = o.seenAt
	}
	s := &configv1.ObjectSummary{
		Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name, Immutable: o.Immutable(),
		Source: o.from, Path: sendable(o.Path), CreatedAt: timestamppb.New(created),
	}
	switch {
	case o.Secret != nil:
		s.Type = string(o.Secret.Type)
	case o.Claim != nil:
		s.PersistentVolumeClaim = o.data
	case o.Class != nil:
		s.StorageClass = o.data
	case o.Driver != nil:
		s.CsiDriver = o.data
	default:
		s.ConfigMap = o.data
	}
	sizes := o.Sizes()
	for _, name := range o.Keys() {
		s.Keys = append(s.Keys, &configv1.ObjectKey{Name: name, Bytes: int64(sizes[name])})
	}
	return s
}

// ObjectHolder returns the source and the path of the object with a key of a source other than except; ok is false if
// there is none.
func (m *Mux) ObjectHolder(key apiobject.Key, except string) (from, path string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, state := range m.sources {
		for _, o := range state.objects {
			if name != except && o.Key() == key {
				return name, o.Path, true
			}
		}
	}
	return "", "", false
}

// count returns the number of effective objects of a source. The mux is locked.
func (m *Mux) count(name string) int {
	n := 0
	for _, count := range m.countKinds(name) {
		n += count
	}
	return n
}

// countKinds returns that number for each kind.
func (m *Mux) countKinds(name string) map[apiobject.Kind]int {
	counts := map[apiobject.Kind]int{}
	for _, kind := range apiobject.Kinds() {
		counts[kind] = 0
	}
	if m.cfg.Counts != nil {
		maps.Copy(counts, m.cfg.Counts())
		return counts
	}
	for key, o := range m.effective {
		if o.from == name {
			counts[key.Kind]++
		}
	}
	return counts
}
