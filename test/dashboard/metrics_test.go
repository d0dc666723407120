package dashboard

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository, compose the tested folder.
const (
	root    = "../.."
	compose = root + "/deploy/compose"
)

// metric is a metric of docs/reference/metrics.md.
type metric struct {
	kind   string
	labels []string
}

// row matches a row of a table of docs/reference/metrics.md: | `NAME` | TYPE | LABELS | ...
var row = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (gauge|counter|histogram) \\|([^|]*)\\|")

// documented returns the metrics that docs/reference/metrics.md lists, by name.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{}
	for _, match := range row.FindAllStringSubmatch(string(read(t, filepath.Join(root, "docs/reference/metrics.md"))),
		-1) {
		all[match[1]] = metric{kind: match[2], labels: strings.Fields(strings.ReplaceAll(match[3], "`", ""))}
	}
	if len(all) < 50 {
		t.Fatalf("docs/reference/metrics.md lists only %d metrics: has the form of its tables changed?", len(all))
	}
	return all
}

// added returns the labels that a scrape adds to every sample.
func added() []string { return []string{"job", "instance", "metrics_path", "service", "__name__"} }

// lookUp returns the labels that a series may have; false when the metric does not exist.
func lookUp(all map[string]metric, name string) ([]string, bool) {
	if name == "up" || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "go_") {
		return added(), true // metrics of Prometheus and of every Go program
	}
	if m, ok := all[name]; ok && m.kind != "histogram" {
		return slices.Concat(m.labels, added()), true
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		base, cut := strings.CutSuffix(name, suffix)
		m, ok := all[base]
		if !cut || !ok || m.kind != "histogram" {
			continue
		}
		labels := slices.Concat(m.labels, added())
		if suffix == "_bucket" {
			labels = append(labels, "le")
		}
		return labels, true
	}
	return nil, false
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
