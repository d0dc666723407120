package dashboard

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// rules returns the alerts of the files that prometheus.yml names.
func rules(t *testing.T) []rule {
	t.Helper()
	var all []rule
	for _, pattern := range config(t).RuleFiles {
		files, err := filepath.Glob(filepath.Join(compose, "prometheus", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("prometheus.yml names %s, and there is none: %v", pattern, err)
		}
		for _, file := range files {
			var content struct {
				Groups []struct {
					Rules []rule `yaml:"rules"`
				} `yaml:"groups"`
			}
			if err := yaml.Unmarshal(read(t, file), &content); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, group := range content.Groups {
				all = append(all, group.Rules...)
			}
		}
	}
	return all
}

type prometheusConfig struct {
	Global struct {
		Interval string `yaml:"scrape_interval"`
		Timeout  string `yaml:"scrape_timeout"`
	} `yaml:"global"`
	RuleFiles []string `yaml:"rule_files"`
	Scrapes   []struct {
		Job     string `yaml:"job_name"`
		Targets []struct {
			Targets []string `yaml:"targets"`
		} `yaml:"static_configs"`
	} `yaml:"scrape_configs"`
}

func config(t *testing.T) prometheusConfig {
	t.Helper()
	var c prometheusConfig
	if err := yaml.Unmarshal(read(t, filepath.Join(compose, "prometheus/prometheus.yml")), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// templateLabel matches a label in the text of an alert.
var templateLabel = regexp.MustCompile(`\$labels\.([a-z_]+)`)

func TestEveryAlertAsksForWhatIsThereAndSaysWhatToDo(t *testing.T) {
	all, names, document := documented(t), []string{}, string(read(t, filepath.Join(root, "docs/reference/metrics.md")))
	for _, r := range rules(t) {
		names = append(names, r.Alert)
		if !strings.Contains(document, "`"+r.Alert+"`") {
			t.Errorf("docs/reference/metrics.md does not list the alert %s", r.Alert)
		}
		result, problems := check(all, r.Expr)
		for _, problem := range problems {
			t.Errorf("%s: %s", r.Alert, problem)
		}
		if severity := r.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q", r.Alert, severity)
		}
		for _, key := range []string{"summary", "description"} {
			if r.Annotations[key] == "" {
				t.Errorf("%s has no %s", r.Alert, key)
			}
			for _, label := range templateLabel.FindAllStringSubmatch(r.Annotations[key], -1) {
				if !slices.Contains(result, label[1]) {
					t.Errorf("%s: its %s names the label %s, which the result of its query does not have", r.Alert, key, label[1])
				}
			}
		}
	}
	for _, want := range []string{"NodeNotReady", "PLEGRelistSlow", "QuartetServiceDown", "StreamResumesOften", "PodCrashLooping"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no alert %s in %v", want, names)
		}
	}
}

func TestPrometheusScrapesWhereTheMetricsAre(t *testing.T) {
	c := config(t)
	interval, err := time.ParseDuration(c.Global.Interval)
	if err != nil || interval > 15*time.Second {
		t.Errorf("the interval is %q, want 15s at most", c.Global.Interval)
	}
	var target string
	for _, scrape := range c.Scrapes {
		if scrape.Job == "kubelet" {
			target = scrape.Targets[0].Targets[0]
		}
	}
	var stack struct {
		Services map[string]struct {
			Command []string `yaml:"command"`
			Network string   `yaml:"network_mode"`
		} `yaml:"services"`
	}
	if err := yaml.Unmarshal(read(t, filepath.Join(compose, "compose.yaml")), &stack); err != nil {
		t.Fatal(err)
	}
	metrics := stack.Services["metrics"]
	if target == "" || !strings.Contains(strings.Join(metrics.Command, " "), "metrics --listen "+target+" ") {
		t.Errorf("the job kubelet scrapes %q, and compose.yaml runs %v", target, metrics.Command)
	}
	if metrics.Network != "service:prometheus" {
		t.Errorf("the metrics are served in the network %q, and on a loopback address: want that of Prometheus", metrics.Network)
	}
}
