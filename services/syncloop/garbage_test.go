package syncloop

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// TestEndedContainersThatMayBeRemoved checks which ended containers may be removed: those of an evicted pod always,
// those of other finished pods only under disk pressure, and never those that a restarted syncloop needs or whose last
// status is not on the disk.
func TestEndedContainersThatMayBeRemoved(t *testing.T) {
	const never, pressed, always = "never", "under pressure", "always"
	evicted := &podstore.Eviction{Reason: "Evicted", Discard: true}
	for name, test := range map[string]struct {
		source   string
		eviction *podstore.Eviction
		state    podworkers.State
		running  bool
		holding  bool
		fullDisk bool
		want     string
	}{
		"an evicted pod":                         {source: "api", eviction: evicted, want: always},
		"a static pod that was evicted":          {source: "file", eviction: evicted, want: always},
		"an evicted pod that is ending":          {source: "api", eviction: evicted, state: podworkers.Terminating, want: never},
		"an evicted pod that holds its volumes":  {source: "api", eviction: evicted, holding: true, want: never},
		"an evicted pod of which something runs": {source: "api", eviction: evicted, running: true, want: never},
		"a disk that cannot be written":          {source: "api", eviction: evicted, fullDisk: true, want: never},
		"a pod that is overdue":                  {source: "api", eviction: &podstore.Eviction{Reason: "DeadlineExceeded"}, want: pressed},
		"a static pod that is overdue":           {source: "file", eviction: &podstore.Eviction{Reason: "DeadlineExceeded"}, want: pressed},
		"a static pod that a shutdown has ended": {source: "file", eviction: &podstore.Eviction{Reason: "Terminated", Boot: "this"}, want: never},
		"a pod that ran to its end":              {source: "api", want: pressed},
		"a static pod that ran to its end":       {source: "file", want: never},
		"a pod that runs":                        {source: "api", state: podworkers.Syncing, running: true, want: never},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			book := evictionbook.Open(evictionbook.Config{
				Path: filepath.Join(dir, "evictions.json"), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
			})
			defer book.Close() //nolint:errcheck // of a test
			store := podstore.New(podstore.Config{
				API: statusmanager.None{}, Clock: clock.RealClock{}, Tracer: noop.NewTracerProvider().Tracer(""),
				Logger: slog.New(slog.DiscardHandler),
			})
			defer store.Close()
			store.Open()
			node, pod := fakenode.New(), fakenode.Pod("u1", "web", v1.RestartPolicyNever)
			node.Run(pod)
			if !test.running {
				node.Exit(pod.UID, 0)
				if err := node.KillPod(t.Context(), pod, nil, 1); err != nil { // stops the sandbox
					t.Fatal(err)
				}
			}
			observed, err := node.GetPodStatus(t.Context(), pod.UID, 0)
			if err != nil {
				t.Fatal(err)
			}
			store.SetPod(pod, test.source, "")
			store.Observe(pod.UID, observed)
			if test.eviction != nil {
				book.Put(pod.UID, *test.eviction)
				if err := store.Evict(pod.UID, *test.eviction); err != nil {
					t.Fatal(err)
				}
			}
			if test.state == 0 {
				test.state = podworkers.Terminated
			}
			store.SetState(pod.UID, test.state)
			if !test.holding {
				store.SetReleased(pod.UID)
			}
			if test.fullDisk {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
			got := never
			switch logger := slog.New(slog.DiscardHandler); {
			case isDisposable(store, book, pod.UID, false, logger):
				got = always
			case isDisposable(store, book, pod.UID, true, logger):
				got = pressed
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if kept, _ := book.Get(pod.UID); !test.fullDisk && (kept.Last != nil) != (test.want != never) {
				t.Errorf("the book has the last status %v", kept.Last)
			}
		})
	}
}
