package mux_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func object(kind apiobject.Kind, name, value string) source.Object {
	o := &apiobject.Object{
		ConfigMap: &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Data:       map[string]string{"key": value},
		},
	}
	if kind == apiobject.Secret {
		o = &apiobject.Object{
			Secret: &v1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Data:       map[string][]byte{"key": []byte(value)},
			},
		}
	}
	return source.Object{Object: o, Path: "/m/" + name}
}

// held is the state of a subscriber of all objects, by key: the source and the bytes.
type held struct {
	sub  stream.Subscription[mux.ObjectEntry]
	all  map[string]string
	last stream.Message[mux.ObjectEntry]
}

// read takes messages until one has the key.
func (h *held) read(ctx context.Context, key string) error {
	for {
		m, err := h.sub.Next(ctx)
		if err != nil {
			return err
		}
		h.last = m
		switch o := m.Value.Object; {
		case o == nil:
		case m.Removed && len(o.GetObject()) > 0:
			return fmt.Errorf("%s is gone, and its data are told", m.Key)
		case m.Removed:
			delete(h.all, m.Key)
		default:
			h.all[m.Key] = o.GetSource() + " " + string(o.GetObject())
		}
		if m.Key == key {
			return nil
		}
	}
}

// For any sequence of readings, the object of the first source with a key is published, the others are errors of their
// sources, and a subscriber has the same objects.
func TestOfEachObjectThatOfTheFirstSourceIsThere(t *testing.T) {
	sources := []string{"file", "http", "local"}
	rapid.Check(t, func(r *rapid.T) {
		m := mux.New(mux.Config{
			Sources: []source.Source{
				named("file"),
				named("http"),
				named("local"),
			},
			Health: rpc.NewHealth(),
			Clock:  clock.RealClock{},
			Tracer: noop.NewTracerProvider().
				Tracer(""),
			Logger:  slog.New(slog.DiscardHandler),
			Metrics: mux.NewMetrics(prometheus.NewRegistry()),
		})
		defer m.Close()
		sub, err := m.ObjectStream(mux.Selection{}).Subscribe(t.Context(), nil)
		if err != nil {
			r.Fatal(err)
		}
		defer sub.Close()
		h := &held{sub: sub, all: map[string]string{}}
		given := map[string]map[string]source.Object{}
		for step := range rapid.IntRange(1, 12).Draw(r, "steps") {
			from := rapid.SampledFrom(sources).Draw(r, "source")
			if rapid.IntRange(0, 4).Draw(r, "failed") == 0 {
				m.Set(from, source.Reading{Failed: true})
				continue
			}
			now := map[string]source.Object{}
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3,
				rapid.ID[string]).Draw(r, "names") {
				o := object(
					rapid.SampledFrom([]apiobject.Kind{apiobject.ConfigMap, apiobject.Secret}).Draw(r, "kind"),
					name,
					rapid.SampledFrom([]string{"1", "2"}).Draw(r, "value"),
				)
				if before, was := given[from][o.Key().Path()]; was && valueIn(before) == valueIn(o) {
					o = before
				}
				now[o.Key().Path()] = o
			}
			given[from] = now
			reading := source.Reading{ReadAt: time.Unix(int64(step+1), 0)}
			for _, key := range slices.Sorted(maps.Keys(now)) {
				reading.Objects = append(reading.Objects, now[key])
			}
			m.Set(from, reading)
		}
		want, hidden := map[string]string{}, map[string]int{}
		for _, from := range sources {
			for key, o := range given[from] {
				if _, taken := want[key]; taken {
					hidden[from]++
					continue
				}
				data, err := o.Marshal()
				if err != nil {
					r.Fatal(err)
				}
				want[key] = from + " " + string(data)
			}
		}
		for _, s := range m.Sources() {
			if len(s.GetErrors()) != hidden[s.GetName()] || int(s.GetObjects()) != len(given[s.GetName()])-hidden[s.GetName()] {
				r.Fatalf(
					"%s has %d objects, errors %v; want %d of %d to be hidden",
					s.GetName(),
					s.GetObjects(),
					s.GetErrors(),
					hidden[s.GetName()],
					len(given[s.GetName()]),
				)
			}
		}
		// The last change: a subscriber that has read it has read everything.
		m.Set("file", source.Reading{Objects: []source.Object{object(apiobject.Secret, "z", "")}, ReadAt: time.Unix(100, 0)})
		if err := h.read(t.Context(), "Secret/default/z"); err != nil {
			r.Fatal(err)
		}
		delete(h.all, "Secret/default/z")
		without := map[string]string{}
		for _, from := range []string{"http", "local"} {
			for key, o := range given[from] {
				if _, taken := without[key]; !taken {
					data, _ := o.Marshal()
					without[key] = from + " " + string(data)
				}
			}
		}
		if !maps.Equal(h.all, without) {
			r.Fatalf("the subscriber holds %q, want %q", h.all, without)
		}
	})
}

func valueIn(o source.Object) string {
	data, _ := o.Marshal()
	return string(data)
}

func TestObjectsComeBeforeThePodsThatNameThemAndAreCounted(t *testing.T) {
	r := newRig(t)
	r.Set(
		"file",
		source.Reading{
			Pods:    []source.Pod{pod("a", "i:1")},
			Objects: []source.Object{object(apiobject.Secret, "s", "12345"), object(apiobject.ConfigMap, "c", "1")},
		},
	)
	metricstest.Want(t, r.registry, 1, "quartet_configmux_source_objects", "source", "file", "kind", "secret")
	metricstest.Want(t, r.registry, 0, "quartet_configmux_source_objects", "source", "api", "kind", "secret")
	metricstest.Want(
		t,
		r.registry,
		1,
		"quartet_configmux_object_changes_total",
		"source",
		"file",
		"kind",
		"configmap",
		"op",
		"add",
	)
	object, pod := -1, -1
	for i, span := range r.spans.GetSpans() {
		for _, a := range span.Attributes {
			switch {
			case a.Key == telemetry.AttrObject && a.Value.AsString() == "secret default/s":
				object = i
			case a.Key == "k8s.pod.uid":
				pod = i
			}
		}
	}
	if object < 0 || pod < object {
		t.Errorf("the span of the object is number %d, that of the pod number %d", object, pod)
	}
	all := r.Objects("")
	if len(all) != 2 || all[0].GetKind() != "ConfigMap" || len(all[0].GetConfigMap()) == 0 ||
		all[1].GetKeys()[0].GetBytes() != 5 {
		t.Errorf("objects %v, want 2 entries, all[0].Kind %q, some all[0].ConfigMap and all[1].Keys[0].Bytes 5",
			all, "ConfigMap")
	}
	for _, o := range r.Objects(apiobject.Secret) {
		if strings.Contains(o.String(), "12345") || len(o.GetConfigMap()) > 0 {
			t.Errorf("the summary %v has the value", o)
		}
	}
}

// Objects outside of a selection cause no message except a bookmark with the position in the stream.
func TestASelectionGetsBookmarks(t *testing.T) {
	level := stream.NewLevel[mux.ObjectEntry](stream.Config{})
	defer level.Close()
	clk := clocktesting.NewFakeClock(time.Now())
	src := mux.Selected(level, clk, mux.Selection{Kind: apiobject.ConfigMap})
	sub, err := src.Subscribe(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	h := &held{sub: sub, all: map[string]string{}}
	put := func(kind string) {
		level.Put(kind, mux.ObjectEntry{Object: &configv1.Object{Kind: kind, Object: []byte("x")}})
	}
	put("ConfigMap")
	if err := h.read(t.Context(), "ConfigMap"); err != nil {
		t.Fatal(err)
	}
	put("Secret")
	clk.Step(stream.BookmarkInterval)
	m, err := sub.Next(t.Context())
	if err != nil || m.Kind != stream.KindBookmark || !bytes.HasPrefix(m.Token, []byte("ConfigMap//:")) {
		t.Fatalf("got %+v, %v; want a bookmark", m, err)
	}
	again, err := src.Subscribe(t.Context(), m.Token)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if opened, err := again.Next(t.Context()); err != nil || opened.Start != stream.StartResumed {
		t.Errorf("with its token: %+v, %v, want Start %v", opened, err, stream.StartResumed)
	}
}
