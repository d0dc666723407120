package main

import (
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// outcome is the outcome of one spec.
type outcome struct {
	// Passed is false for a spec that failed, was interrupted or panicked.
	Passed bool `json:"passed"`
	// Seconds is the duration of the spec.
	Seconds float64 `json:"seconds"`
	// Why is the first line of the failure.
	Why string `json:"why,omitempty"`
	// Repeats is how often the spec was run again because a kill had cut off one of its streams.
	Repeats int `json:"repeats,omitempty"`
}

// outcomes has the outcomes of a run by the name of the spec, without those of skipped specs.
type outcomes map[string]outcome

// readJUnit reads the report of a run. Failed nodes that are no specs, such as the set-up of the suite, are included.
func readJUnit(path string) (outcomes, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string  `xml:"name,attr"`
				Status  string  `xml:"status,attr"`
				Seconds float64 `xml:"time,attr"`
				Failure *struct {
					Message string `xml:"message,attr"`
				} `xml:"failure"`
				Error *struct {
					Message string `xml:"message,attr"`
				} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(content, &report); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	all := outcomes{}
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			name, isSpec := strings.CutPrefix(c.Name, "[It] ")
			o := outcome{Passed: c.Status == "passed", Seconds: c.Seconds}
			switch {
			case c.Status == "skipped" || c.Status == "pending", o.Passed && !isSpec:
				continue
			case c.Failure != nil:
				o.Why = firstLine(c.Failure.Message)
			case c.Error != nil:
				o.Why = firstLine(c.Error.Message)
			}
			all[withoutLabels(name)] = o
		}
	}
	return all, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// labels matches the labels that ginkgo appends to the name of a spec.
var labels = regexp.MustCompile(` \[[\w:, -]+,[\w:, -]+\]$`)

// withoutLabels returns the name as it is written in the source.
func withoutLabels(name string) string { return labels.ReplaceAllString(name, "") }

// passed returns the number of specs that passed.
func (o outcomes) passed() int {
	n := 0
	for _, one := range o {
		if one.Passed {
			n++
		}
	}
	return n
}

// onlyIn returns the specs that pass in o and not in others, sorted. A spec that others did not run counts as not
// passed.
func (o outcomes) onlyIn(others outcomes) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if o[name].Passed && !others[name].Passed {
			names = append(names, name)
		}
	}
	return names
}

// failed returns the specs that did not pass, sorted.
func (o outcomes) failed() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !o[name].Passed {
			names = append(names, name)
		}
	}
	return names
}
