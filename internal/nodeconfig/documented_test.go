package nodeconfig

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestEveryFieldIsInTheDocuments: docs/reference/configuration.md has each field of a KubeletConfiguration in one of
// two tables, with its users or the reason why it has no effect, and support.go agrees.
func TestEveryFieldIsInTheDocuments(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Fields\n")
	used, ignored, both := strings.Cut(section, "\n## Fields without effect\n")
	if !found || !both {
		t.Fatal("there are no tables of the fields that are used and of those without effect")
	}
	ignored, _, _ = strings.Cut(ignored, "\n## ")
	usedFields, ignoredFields := fieldsOfTable(used), fieldsOfTable(ignored)
	for _, name := range fieldNames() {
		isSupported, isUsed, isIgnored := slices.Contains(
			supported,
			name,
		), slices.Contains(
			usedFields,
			name,
		), slices.Contains(
			ignoredFields,
			name,
		)
		if name == "apiVersion" || name == "kind" {
			continue
		}
		if isUsed != isSupported || isIgnored == isSupported {
			t.Errorf(
				"%s: some service acts on it: %t; in the table of what fields are used by: %t; in that of fields that are not acted on: %t",
				name,
				isSupported,
				isUsed,
				isIgnored,
			)
		}
	}
	for _, name := range append(usedFields, ignoredFields...) {
		if !slices.Contains(fieldNames(), name) {
			t.Errorf("%s is in a table and no field", name)
		}
	}
	for _, name := range supported {
		if name != "apiVersion" && name != "kind" && !slices.Contains(fieldNames(), name) {
			t.Errorf("%s is in support.go and no field", name)
		}
	}
}

var code = regexp.MustCompile("`([a-zA-Z0-9]+)`")

// fieldsOfTable returns the names in the first column.
func fieldsOfTable(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, match := range code.FindAllStringSubmatch(cells[1], -1) {
			names = append(names, match[1])
		}
	}
	return names
}

// TestEveryFlagIsInTheDocuments: docs/reference/flags.md names each flag of each service, in the table of all or in its
// own row.
func TestEveryFlagIsInTheDocuments(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## All four processes\n")
	shared, own, both := strings.Cut(section, "\n## One process\n")
	if !found || !both {
		t.Fatal("there are no tables of the flags of all processes and of one")
	}
	own, _, _ = strings.Cut(own, "\n## ")
	documented := func(service Service, flag string) bool {
		name := regexp.MustCompile("`--" + regexp.QuoteMeta(flag) + "[ `]")
		for line := range strings.Lines(own) {
			cells := strings.Split(strings.ReplaceAll(line, `\|`, "/"), "|")
			of := len(cells) > 2 &&
				(strings.Contains(cells[1], string(service)) || strings.Contains(cells[1], "all but pleg") && service != PLEG)
			if of && name.MatchString(cells[2]) {
				return true
			}
		}
		return name.MatchString(shared)
	}
	for _, service := range Services() {
		new(flags).flagSet(service).VisitAll(func(flag *pflag.Flag) {
			if !documented(service, flag.Name) {
				t.Errorf("the flag --%s of %s is in no table", flag.Name, service)
			}
		})
	}
}
