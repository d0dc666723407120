package filesource

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// patience is the time limit of a wait, much longer than any of them needs.
const patience = time.Minute

// recorder is a sink that stores its readings.
type recorder struct {
	mu       sync.Mutex
	readings []source.Reading
	news     chan struct{}
}

func (r *recorder) Set(name string, reading source.Reading) {
	if name != Name {
		panic("reading of another source: " + name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readings = append(r.readings, reading)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

func (r *recorder) all() []source.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.readings)
}

// rig is a running file source.
type rig struct {
	t *testing.T
	*recorder
	path     string
	registry *prometheus.Registry
	stop     func()
}

type option func(*Source)

// start runs a file source on a path until the test ends.
func start(t *testing.T, path string, options ...option) *rig {
	t.Helper()
	registry := prometheus.NewRegistry()
	s := New(Config{
		Path:       path,
		Node:       "node",
		Standalone: true,
		Seals:      sealing.NewKeyring(filepath.Join(t.TempDir(), "secrets.key"), os.Geteuid()),
		Period:     time.Hour,
		Clock:      clock.RealClock{},
		Checkpoint: filepath.Join(t.TempDir(), "checkpoint.json"),
		Tracer:     noop.NewTracerProvider().Tracer(""),
		Logger:     slog.New(slog.DiscardHandler),
		Metrics:    NewMetrics(registry),
	})
	for _, o := range options {
		o(s)
	}
	r := &rig{t: t, path: path, registry: registry, recorder: &recorder{news: make(chan struct{}, 1)}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r.recorder) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	r.until("the first reading", func(source.Reading) bool { return true })
	return r
}

// until waits for a reading that meets the condition, and returns it.
func (r *rig) until(what string, condition func(source.Reading) bool) source.Reading {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		all := r.all()
		if len(all) > 0 && condition(all[len(all)-1]) {
			return all[len(all)-1]
		}
		select {
		case <-r.news:
		case <-deadline:
			r.t.Fatalf(
				"waited for %s; the last of %d readings has pods %v and errors %v",
				what,
				len(all),
				summary(last(all)),
				last(all).Errors,
			)
		}
	}
}

// has waits until the pods are exactly these, as "name image", and there are that many errors.
func (r *rig) has(errors int, want ...string) source.Reading {
	r.t.Helper()
	return r.until(fmt.Sprintf("pods %v and %d errors", want, errors), func(got source.Reading) bool {
		return !got.Failed && len(got.Errors) == errors && slices.Equal(summary(got), want)
	})
}

func last(all []source.Reading) source.Reading {
	if len(all) == 0 {
		return source.Reading{}
	}
	return all[len(all)-1]
}

func summary(reading source.Reading) []string {
	var out []string
	for _, p := range reading.Pods {
		out = append(out, p.Name+" "+p.Spec.Containers[0].Image)
	}
	slices.Sort(out)
	return out
}

func manifest(name, image string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: %s}]}\n",
		name,
		image,
	)
}

// replace replaces a file atomically, as careful programs do.
func replace(t *testing.T, path, content string) {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	overwrite(t, hidden, content)
	must(t, os.Rename(hidden, path))
}

// overwrite writes a file in place.
func overwrite(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
