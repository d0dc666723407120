package apisource

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit of a wait, much longer than any of them needs.
const patience = 60 * time.Second

// everything allows all host privileges.
var everything = privilege.Everything()

// rig is a running API source with a sink that stores its readings.
type rig struct {
	t          *testing.T
	cfg        Config
	clock      *testingclock.FakeClock
	registry   *prometheus.Registry
	spans      *tracetest.InMemoryExporter
	nodes      *stream.Level[*nodev1.Node]
	health     *rpc.Health
	checkpoint string
	limit      time.Duration

	given chan source.Reading
	stop  func()
}

// Set implements source.Sink.
func (r *rig) Set(name string, reading source.Reading) {
	if name != Name {
		panic("reading of another source: " + name)
	}
	r.given <- reading
}

// newRig sets up the dependencies of a source. The Node has synced unless the test changes that.
func newRig(t *testing.T, client rest.Interface) *rig {
	t.Helper()
	r := &rig{
		t:          t,
		clock:      testingclock.NewFakeClock(time.Unix(1000, 0)),
		registry:   prometheus.NewRegistry(),
		limit:      requestLimit,
		spans:      tracetest.NewInMemoryExporter(),
		checkpoint: filepath.Join(t.TempDir(), "api-pods"),
		given:      make(chan source.Reading, 100),
		nodes:      stream.NewLevel[*nodev1.Node](stream.Config{}),
		health:     rpc.NewHealth(),
	}
	r.nodes.Put("node", &nodev1.Node{Synced: true})
	r.cfg = Config{
		Client: client,
		Server: func() string {
			at := client.Get().URL()
			return at.Scheme + "://" + at.Host
		},
		Node:       "node",
		Allowed:    everything,
		Nodes:      r.nodes,
		Checkpoint: r.checkpoint,
		Health:     r.health,
		Clock:      r.clock,
		Tracer:     sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans)).Tracer(""),
		Logger:     slog.New(slog.DiscardHandler),
		Metrics:    NewMetrics(r.registry),
	}
	return r
}

// run runs the source until the test ends, or stop.
func (r *rig) run() *rig {
	s := New(r.cfg)
	s.limit = r.limit
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
	r.t.Cleanup(r.stop)
	return r
}

func start(t *testing.T, a *apiServer) *rig { return newRig(t, a.client()).run() }

// until returns the next reading for which the condition holds; those before it are dropped.
func (r *rig) until(what string, condition func(source.Reading) bool) source.Reading {
	r.t.Helper()
	deadline := time.After(patience)
	var last source.Reading
	for {
		select {
		case last = <-r.given:
			if condition(last) {
				return last
			}
		case <-deadline:
			r.t.Fatalf("waited for %s; the last reading is %+v", what, last)
		}
	}
}

// pods returns the next reading that has pods or is a full set.
func (r *rig) pods() source.Reading {
	r.t.Helper()
	return r.until("pods", func(reading source.Reading) bool {
		return !reading.Failed && (len(reading.Pods) > 0 || reading.Op == podset.None)
	})
}

// want fails the test unless the next reading of pods has this operation and these pods, as "name image".
func (r *rig) want(op podset.Op, pods ...string) source.Reading {
	r.t.Helper()
	reading := r.pods()
	if reading.Op != op || !slices.Equal(texts(reading), pods) {
		r.t.Fatalf("%v %q, want %v %q", reading.Op, texts(reading), op, pods)
	}
	return reading
}

// wrong returns the next reading with an error that contains the text.
func (r *rig) wrong(text string) source.Error {
	r.t.Helper()
	var found source.Error
	r.until("the error "+text, func(reading source.Reading) bool {
		at := slices.IndexFunc(reading.Errors, func(e source.Error) bool { return strings.Contains(e.Message, text) })
		if at >= 0 {
			found = reading.Errors[at]
		}
		return at >= 0
	})
	return found
}

// mended waits until there is no error.
func (r *rig) mended() {
	r.t.Helper()
	r.until("that nothing is wrong", func(reading source.Reading) bool { return len(reading.Errors) == 0 })
}

// kept waits until the checkpoint has these pods.
func (r *rig) kept(pods ...string) []*v1.Pod {
	r.t.Helper()
	var found []*v1.Pod
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		var data []byte
		if data, err = os.ReadFile(r.checkpoint); err == nil {
			if _, found, err = decode(data); err == nil && slices.Equal(textsOf(found), pods) {
				return found
			}
		}
		r.pause(time.Millisecond)
	}
	r.t.Fatalf("the checkpoint has %q, %v; want %q", textsOf(found), err, pods)
	return nil
}

// pause yields to other goroutines.
func (r *rig) pause(d time.Duration) {
	select {
	case <-r.t.Context().Done():
	case <-time.After(d):
	}
}

// timers waits until this number of timers is set on the clock.
func (r *rig) timers(n int) {
	r.t.Helper()
	for end := time.Now().Add(patience); r.clock.Waiters() < n; r.pause(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%d timers are set, want %d", r.clock.Waiters(), n)
		}
	}
}

func texts(reading source.Reading) []string {
	var out []string
	for _, p := range reading.Pods {
		out = append(out, text(p.Pod))
	}
	return out
}

func textsOf(pods []*v1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, text(p))
	}
	return out
}

func pemOf(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func nodeSynced() *nodev1.Node { return &nodev1.Node{Synced: true} }
