package configmux

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMetricsAreServedAsDocumented(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "a1", "i:1"))
	p.cfg.TLS = authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "configmux"})
	p.run()
	p.ready()
	served := metricstest.Scrape(p.cfg.MetricsListen)
	metricstest.Documented(t, served, metricstest.EveryService, metricstest.ServedStreams, metricstest.ConfigMux,
		metricstest.Certificates)

	next := p.watch(nil)
	expect(t, next, "OPENED", "SNAPSHOT ADD a-node i:1", "SNAPSHOT source file ready=true", "SYNCED")
	p.write("a.yaml", manifest("a", "a1", "i:2"))
	expect(t, next, "DELTA UPDATE a-node i:2", "DELTA source file ready=true")
	p.write("b.yaml", "kind: Pod")
	eventually.That(p.t, "the broken manifest is seen", func() bool {
		return metricstest.Value(t, served, "quartet_configmux_source_errors", "source", "file") > 0
	})
	metricstest.Want(t, served, 1, "quartet_configmux_source_ready", "source", "file")
	metricstest.Want(t, served, 1, "quartet_configmux_source_pods", "source", "file")
	metricstest.Want(t, served, 1, "quartet_configmux_changes_total", "source", "file", "op", "add")
	metricstest.Want(t, served, 1, "quartet_configmux_changes_total", "source", "file", "op", "update")
	metricstest.Want(t, served, 0, "quartet_configmux_changes_total", "source", "file", "op", "remove")
	metricstest.Want(t, served, 2, "quartet_configmux_manifests")
	metricstest.Want(t, served, 1, "quartet_configmux_manifests_broken")
	metricstest.Want(t, served, 3, "quartet_configmux_manifests_read_total")
	metricstest.Want(t, served, 1, "quartet_configmux_manifests_failed_total")
	if got := metricstest.Value(t, served, "quartet_stream_subscribers", "stream", "pod_updates"); got < 1 {
		t.Errorf("%v subscribers are counted, and this test is one", got)
	}
	at := metricstest.Value(t, served, "quartet_configmux_source_last_read_timestamp_seconds", "source", "file")
	if age := time.Since(time.Unix(int64(at), 0)); age < 0 || age > time.Minute {
		t.Errorf("the source was read %v ago, want just now", age)
	}
	if got := metricstest.Value(t, served, "quartet_configmux_merge_duration_seconds", "source", "file"); got < 3 {
		t.Errorf("%v merges were timed, want each", got)
	}
	must(t, os.Remove(filepath.Join(p.dir, "b.yaml")))
	eventually.That(p.t, "the broken manifest is gone", func() bool {
		return metricstest.Value(t, served, "quartet_configmux_source_errors", "source", "file") == 0
	})
	metricstest.Want(t, served, 0, "quartet_configmux_manifests_broken")
}
