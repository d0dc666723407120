package oracle

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// marker is a source whose change says that nothing more comes of a step.
const marker = "marker"

// fataler is a test, of either kind, or a benchmark.
type fataler interface{ Fatal(args ...any) }

// named is a source that says nothing by itself.
type named string

func (n named) Name() string                           { return string(n) }
func (n named) Target() string                         { return "/" + string(n) }
func (n named) Run(context.Context, source.Sink) error { return nil }

// ours is our merge and one who subscribes to it and keeps up.
type ours struct {
	t     fataler
	mode  configv1.Mode
	mux   *mux.Mux
	sub   stream.Subscription[mux.Entry]
	marks int
	// ready has the sources that have spoken, as the subscriber was told.
	ready map[string]bool
}

func newOurs(t fataler, mode configv1.Mode) *ours {
	o := &ours{t: t, mode: mode, ready: map[string]bool{}}
	sources := []source.Source{named(marker)}
	for _, name := range sourceNames() {
		sources = append(sources, named(name))
	}
	o.mux = mux.New(mux.Config{
		Sources: sources,
		Health:  rpc.NewHealth(),
		Clock:   clock.RealClock{},
		Tracer: noop.NewTracerProvider().
			Tracer(""),
		Logger:  slog.New(slog.DiscardHandler),
		Metrics: mux.NewMetrics(prometheus.NewRegistry()),
	})
	o.mark()
	sub, err := o.mux.Stream(mode).Subscribe(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	o.sub = sub
	for o.next().Kind != stream.KindSynced {
	}
	return o
}

func (o *ours) close() {
	o.sub.Close()
	o.mux.Close()
}

func (o *ours) next() stream.Message[mux.Entry] {
	m, err := o.sub.Next(context.Background())
	if err != nil {
		o.t.Fatal(err)
	}
	return m
}

// mark changes the pod of the marker.
func (o *ours) mark() {
	o.marks++
	o.mux.Set(marker, source.Reading{Pods: []source.Pod{{Pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: marker, Name: marker, UID: marker},
		Spec:       v1.PodSpec{NodeName: fmt.Sprint(o.marks)},
	}}}})
}

// take gives a step to our merge, as our sources do: free of repeated names and UIDs. It returns what the subscriber is
// told, in the kubelet's form, and whether it was told that all sources have spoken.
func (o *ours) take(s step) (said []message, ready bool) {
	pods := copies(s.pods)
	if s.op != podset.Remove {
		pods, _ = podset.Filter(pods)
	}
	reading := source.Reading{Op: s.op}
	for _, p := range pods {
		reading.Pods = append(reading.Pods, source.Pod{Pod: p})
	}
	o.mux.Set(s.source, reading)
	o.mark()
	had := o.ready[s.source]
	for o.told(&said) {
	}
	if !had && o.ready[s.source] && !speaks(said) {
		said = append(said, message{op: "ADD", source: s.source})
	}
	for _, name := range sourceNames() {
		if !o.ready[name] {
			return said, false
		}
	}
	return said, true
}

// speaks tells whether the kubelet lets messages stand for that the source has spoken.
func speaks(said []message) bool {
	for _, m := range said {
		if m.op == "ADD" || m.op == "UPDATE" || m.op == "DELETE" || m.op == "SET" {
			return true
		}
	}
	return false
}

// told reads one message; it is false when that is of the marker, so that nothing more comes.
func (o *ours) told(said *[]message) bool {
	value := o.next().Value
	switch {
	case value.Source != nil:
		o.ready[value.Source.GetName()] = value.Source.GetReady()
		return value.Source.GetName() != marker
	case value.Set != nil:
		if value.Set.GetSource() == marker {
			return false
		}
		for _, s := range value.Set.GetSources() {
			o.ready[s.GetName()] = s.GetReady()
		}
		m := message{op: "SET", source: value.Set.GetSource()}
		for _, p := range value.Set.GetPods() {
			if p.GetSource() != marker {
				m.pods = append(m.pods, o.decode(p))
			}
		}
		*said = append(*said, m)
		return true
	case value.Pod.GetSource() == marker:
		// In the incremental mode the state of the source follows.
		return o.mode == configv1.Mode_MODE_INCREMENTAL
	}
	op := strings.TrimPrefix(value.Pod.GetOp().String(), "OP_")
	if last := len(*said) - 1; last >= 0 && (*said)[last].op == op {
		(*said)[last].pods = append((*said)[last].pods, o.decode(value.Pod))
	} else {
		*said = append(*said, message{op: op, source: value.Pod.GetSource(), pods: []*v1.Pod{o.decode(value.Pod)}})
	}
	return true
}

func (o *ours) decode(u *configv1.PodUpdate) *v1.Pod {
	p := &v1.Pod{}
	if err := p.Unmarshal(u.GetPod()); err != nil {
		o.t.Fatal(err)
	}
	return p
}
