// Package metricstest looks at metrics in tests, as Prometheus would see them.
package metricstest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
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
		if !slices.ContainsFunc(metric.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == pair[0] && l.GetValue() == pair[1] }) {
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

// row is a row of a table of docs/metrics.md: | `NAME` | TYPE | LABELS | ...
var row = regexp.MustCompile("^\\| `((?:quartet|kubelet|kubernetes)_[a-z0-9_]+)` \\| ([a-z]+) \\| ([^|]*) \\|")

// Documented compares what a service exposes with its section of docs/metrics.md, the one whose heading is its name, and
// with the section "Every service": each metric of Quartet's and the kubelet's names has a row with its type and labels, and
// each row has a metric. So every metric has to be there, with all its labels, when this is called: vectors that are
// still empty are not seen.
func Documented(t testing.TB, from prometheus.Gatherer, service string) {
	t.Helper()
	document := find(t, "docs/metrics.md")
	want := map[string]string{}
	for _, heading := range []string{"Every service", service} {
		rows := rowsOf(t, document, heading)
		if len(rows) == 0 {
			t.Fatalf("docs/metrics.md has no table of metrics below the heading %q", heading)
		}
		for name, what := range rows {
			want[name] = what
		}
	}
	for _, family := range gather(t, from) {
		name := family.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		got := fmt.Sprintf("%s, labels: %s", strings.ToLower(family.GetType().String()), labelsOf(family))
		switch documented, is := want[name]; {
		case !is:
			t.Errorf("%s exposes %s (%s), and docs/metrics.md has no row for it", service, name, got)
		case documented != got:
			t.Errorf("%s exposes %s (%s), docs/metrics.md says (%s)", service, name, got, documented)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("docs/metrics.md has a row for %s, and %s does not expose it", name, service)
	}
}

// rowsOf returns type and labels of each metric in a section, by name.
func rowsOf(t testing.TB, document, heading string) map[string]string {
	t.Helper()
	rows, within := map[string]string{}, false
	for line := range strings.Lines(document) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			within = strings.TrimLeft(line, "# ") == heading
			continue
		}
		match := row.FindStringSubmatch(line)
		if !within || match == nil {
			continue
		}
		labels := regexp.MustCompile("`[a-z_]+`").FindAllString(match[3], -1)
		for i := range labels {
			labels[i] = strings.Trim(labels[i], "`")
		}
		slices.Sort(labels)
		rows[match[1]] = fmt.Sprintf("%s, labels: %s", match[2], strings.Join(labels, " "))
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
