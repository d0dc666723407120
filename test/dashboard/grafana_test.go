package dashboard

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"
)

// board has the tested fields of a dashboard.
type board struct {
	UID, Title string
	Panels     []panel
}

type panel struct {
	ID          int
	Type, Title string
	Datasource  datasource
	GridPos     struct{ X, Y, W, H int }
	Targets     []target
}

type target struct {
	Expr, LegendFormat string
	Datasource         datasource
}

type datasource struct{ UID, Type string }

// boards returns the dashboards, by file.
func boards(t *testing.T) map[string]board {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(compose, "grafana/dashboards/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no dashboard: %v", err)
	}
	all := map[string]board{}
	for _, file := range files {
		var b board
		if err := json.Unmarshal(read(t, file), &b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = b
	}
	return all
}

// legendLabel matches a label in a legend.
var legendLabel = regexp.MustCompile(`{{\s*([a-z_]+)\s*}}`)

func TestEveryQueryOfTheDashboardAsksForWhatIsThere(t *testing.T) {
	all := documented(t)
	for file, b := range boards(t) {
		for _, p := range b.Panels {
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s: %q shows nothing", file, p.Title)
			}
			for _, q := range p.Targets {
				result, problems := check(all, q.Expr)
				for _, problem := range problems {
					t.Errorf("%s: %q: %s: %s", file, p.Title, q.Expr, problem)
				}
				for _, label := range legendLabel.FindAllStringSubmatch(q.LegendFormat, -1) {
					if !slices.Contains(result, label[1]) {
						t.Errorf("%s: %q: the legend %q has a label that the query %s has not", file, p.Title, q.LegendFormat, q.Expr)
					}
				}
			}
		}
	}
}

func TestPanelsAreWhereTheyCanBeSeen(t *testing.T) {
	const columns = 24
	for file, b := range boards(t) {
		taken, ids := map[[2]int]string{}, map[int]bool{}
		for _, p := range b.Panels {
			if ids[p.ID] {
				t.Errorf("%s: %q has the id of another", file, p.Title)
			}
			ids[p.ID] = true
			at := p.GridPos
			if at.W <= 0 || at.H <= 0 || at.X+at.W > columns {
				t.Errorf("%s: %q is outside", file, p.Title)
			}
			for x := range at.W {
				for y := range at.H {
					cell := [2]int{at.X + x, at.Y + y}
					if other, is := taken[cell]; is {
						t.Fatalf("%s: %q lies on %q", file, p.Title, other)
					}
					taken[cell] = p.Title
				}
			}
		}
	}
}

func TestTheDashboardUsesTheDatasourceThatIsProvisioned(t *testing.T) {
	var provisioned struct {
		Datasources []struct{ UID, Type, URL string } `yaml:"datasources"`
	}
	if err := yaml.Unmarshal(read(t, filepath.Join(compose, "grafana/provisioning/datasources/prometheus.yaml")), &provisioned); err != nil {
		t.Fatal(err)
	}
	if len(provisioned.Datasources) != 1 || provisioned.Datasources[0].URL != "http://prometheus:9090" {
		t.Fatalf("got %+v, want Prometheus at the name of its container", provisioned.Datasources)
	}
	want := datasource{UID: provisioned.Datasources[0].UID, Type: provisioned.Datasources[0].Type}
	for file, b := range boards(t) {
		if b.UID == "" || b.Title == "" {
			t.Errorf("%s has no uid or title", file)
		}
		for _, p := range b.Panels {
			if p.Type == "row" {
				continue
			}
			if p.Datasource != want {
				t.Errorf("%s: %q asks %+v, want %+v", file, p.Title, p.Datasource, want)
			}
			for _, q := range p.Targets {
				if q.Datasource != want {
					t.Errorf("%s: %q asks %+v, want %+v", file, p.Title, q.Datasource, want)
				}
			}
		}
	}
}
