// Package metricstest looks at metrics in tests, as Prometheus would see them.
package metricstest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Value returns the value of the one metric of this name that has the labels, given as name, value, name, value; of a
// histogram the number of its observations. The test fails when there is none, or more than one.
func Value(t testing.TB, from prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	var found []float64
	for _, family := range gather(t, from) {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if has(metric, labels) {
				found = append(found, valueOf(metric))
			}
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d metrics %s have the labels %v, want one", len(found), name, labels)
	}
	return found[0]
}

// Want fails the test when a metric has another value, see Value.
func Want(t testing.TB, from prometheus.Gatherer, want float64, name string, labels ...string) {
	t.Helper()
	if got := Value(t, from, name, labels...); got != want {
		t.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

// Scrape returns what is served at an address, as --metrics-listen has it, each time that it is gathered.
func Scrape(address string) prometheus.Gatherer { return ScrapeAt(address, "/metrics") }

// ScrapeAt is [Scrape] of what is served at a path.
func ScrapeAt(address, path string) prometheus.Gatherer {
	network, at := "tcp", address
	if socket, unix := strings.CutPrefix(address, "unix://"); unix {
		network, at = "unix", socket
	}
	return prometheus.GathererFunc(func() (families []*dto.MetricFamily, err error) {
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at)
		}}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://node" + path)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, response.Body.Close()) }()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		byName, err := parser.TextToMetricFamilies(response.Body)
		return slices.Collect(maps.Values(byName)), err
	})
}

// patience is how long a scrape may take.
const patience = 30 * time.Second

func gather(t testing.TB, from prometheus.Gatherer) []*dto.MetricFamily {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

func has(metric *dto.Metric, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if !slices.ContainsFunc(
			metric.GetLabel(),
			func(l *dto.LabelPair) bool { return l.GetName() == pair[0] && l.GetValue() == pair[1] },
		) {
			return false
		}
	}
	return true
}

func valueOf(metric *dto.Metric) float64 {
	switch {
	case metric.GetHistogram() != nil:
		return float64(metric.GetHistogram().GetSampleCount())
	case metric.GetCounter() != nil:
		return metric.GetCounter().GetValue()
	default:
		return metric.GetGauge().GetValue()
	}
}

// The sections of docs/reference/metrics.md that have tables of metrics: what every service has, what those have that
// serve or follow a stream or call the container runtime, what one service alone has, what is at a path of its own, and
// what `quartet metrics` adds.
const (
	WholeNode       = "The whole node at once"
	NodeAPI         = "The whole node at the HTTP API"
	HealthChecks    = "Health checks"
	EveryService    = "Every service"
	ServedStreams   = "Streams that are served"
	FollowedStreams = "Streams that are followed"
	RuntimeCalls    = "Calls of the container runtime"
	ConfigMux       = "configmux"
	PLEG            = "pleg"
	SyncLoop        = "syncloop"
	Probes          = "Probes"
	NodeStatus      = "nodestatus"
	APIRequests     = "Requests to an API server"
	NodeInCluster   = "nodestatus of a cluster"
	EventsInCluster = "Events of a cluster"
	Certificates    = "Certificates"
)

// Documented compares what a service exposes with sections of docs/reference/metrics.md: it is [Within] them, [Exposes]
// all that they have, and is [WellNamed]. So every metric has to be there, with all its labels, when this is called:
// vectors that are still empty are not seen.
func Documented(t testing.TB, from prometheus.Gatherer, sections ...string) {
	t.Helper()
	Within(t, from, sections...)
	Exposes(t, from, sections...)
	WellNamed(t, from)
}

// WellNamed fails the test when the linter of Prometheus, that of `promtool check metrics`, objects to a metric of
// Quartet: to its name, its unit, its type or its help. The others have the names of kubelets and Kubernetes.
func WellNamed(t testing.TB, from prometheus.Gatherer) {
	t.Helper()
	own := slices.DeleteFunc(gather(t, from), func(family *dto.MetricFamily) bool {
		return !strings.HasPrefix(family.GetName(), "quartet_")
	})
	problems, err := promlint.NewWithMetricFamilies(own).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("promtool check metrics: %s: %s", problem.Metric, problem.Text)
	}
}

// Within fails the test when a metric is exposed that has no row in one of the sections, or a row with another type or
// other labels. What every Go program has needs no row.
func Within(t testing.TB, from prometheus.Gatherer, sections ...string) {
	t.Helper()
	rows := documented(t, sections)
	for name, got := range exposed(t, from) {
		switch want, found := rows[name]; {
		case !found:
			t.Errorf("%s (%s) is exposed, and docs/reference/metrics.md has no row for it in %q", name, got, sections)
		case want != got:
			t.Errorf("%s (%s) is exposed, docs/reference/metrics.md says (%s)", name, got, want)
		}
	}
}

// Exposes fails the test when a metric that has a row in one of the sections is not exposed.
func Exposes(t testing.TB, from prometheus.Gatherer, sections ...string) {
	t.Helper()
	got := exposed(t, from)
	for name := range documented(t, sections) {
		if _, found := got[name]; !found {
			t.Errorf("docs/reference/metrics.md has a row for %s in %q, and it is not exposed", name, sections)
		}
	}
}

// Covers fails the test when one gatherer does not expose what another one does, with the same type and labels.
func Covers(t testing.TB, from, other prometheus.Gatherer) {
	t.Helper()
	got := exposed(t, from)
	for name, want := range exposed(t, other) {
		if got[name] != want {
			t.Errorf("%s is exposed as (%s), want (%s)", name, got[name], want)
		}
	}
}

// exposed returns type and labels of each metric, by name.
func exposed(t testing.TB, from prometheus.Gatherer) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, family := range gather(t, from) {
		if name := family.GetName(); !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			all[name] = fmt.Sprintf("%s, labels: %s", strings.ToLower(family.GetType().String()), labelsOf(family))
		}
	}
	return all
}

// documented returns type and labels of each metric that has a row in one of the sections, by name.
func documented(t testing.TB, sections []string) map[string]string {
	t.Helper()
	document, rows := rowsOf(t, find(t, "docs/reference/metrics.md")), map[string]string{}
	for _, section := range sections {
		if len(document[section]) == 0 {
			t.Fatalf("docs/reference/metrics.md has no table of metrics below the heading %q", section)
		}
		maps.Copy(rows, document[section])
	}
	return rows
}

// row is a row of a table of docs/reference/metrics.md: | `NAME` | TYPE | LABELS | ...
var row = regexp.MustCompile(
	"^\\| `((?:quartet|kubelet|kubernetes|prober|storage|volume|plugin|csi|dra|rest)_[a-z0-9_]+)` \\| ([a-z]+) \\|([^|]*)\\|",
)

// rowsOf returns type and labels of each metric, by section and name. It fails for rows in a section that no service is
// compared with.
func rowsOf(t testing.TB, document string) map[string]map[string]string {
	t.Helper()
	known := []string{
		WholeNode,
		NodeAPI,
		HealthChecks,
		EveryService,
		ServedStreams,
		FollowedStreams,
		RuntimeCalls,
		ConfigMux,
		PLEG,
		SyncLoop,
		Probes,
		NodeStatus,
		APIRequests,
		NodeInCluster,
		EventsInCluster,
		Certificates,
	}
	rows, section := map[string]map[string]string{}, ""
	for line := range strings.Lines(document) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			section = strings.TrimLeft(line, "# ")
			continue
		}
		match := row.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		if !slices.Contains(known, section) {
			t.Errorf("docs/reference/metrics.md has a row for %s in %q, which is none of %q", match[1], section, known)
		}
		if rows[section] == nil {
			rows[section] = map[string]string{}
		}
		labels := strings.Fields(strings.ReplaceAll(match[3], "`", ""))
		slices.Sort(labels)
		rows[section][match[1]] = fmt.Sprintf("%s, labels: %s", match[2], strings.Join(labels, " "))
	}
	return rows
}

// labelsOf returns the names of a family's labels.
func labelsOf(family *dto.MetricFamily) string {
	var names []string
	for _, metric := range family.GetMetric() {
		for _, l := range metric.GetLabel() {
			names = append(names, l.GetName())
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// find reads a file of the repository, by its path from the root: the first folder upwards with a go.mod.
func find(t testing.TB, path string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod in any folder upwards")
		}
		dir = filepath.Dir(dir)
	}
	data, err := os.ReadFile(filepath.Join(dir, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
