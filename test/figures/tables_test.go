package figures_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/test/figures"
)

// stored reads the report of a run of one and of a hundred pods.
func stored(t *testing.T) *figures.Report {
	t.Helper()
	report, err := figures.Read(filepath.Join("testdata", "bench.json"))
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestTheTablesOfAReport compares what a document gets from a stored report with a file.
func TestTheTablesOfAReport(t *testing.T) {
	report := stored(t)
	for name, write := range map[string]func(io.Writer) error{"summary": report.Summary, "tables": report.Tables} {
		t.Run(name, func(t *testing.T) {
			document := filepath.Join(t.TempDir(), "document.md")
			section := func(content string) string {
				return "# Figures\n\n<!-- bench: other -->\n<!-- /bench -->\n\n<!-- bench: " + name + " -->\n" + content +
					"<!-- /bench -->\n\nThe end.\n"
			}
			if err := os.WriteFile(document, []byte(section("an earlier run\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time there is nothing to change
				if err := figures.Update(document, name, write); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(filepath.Join("testdata", name+".md"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(document)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(section("\n"+string(want)+"\n"), string(got)); diff != "" {
				t.Errorf("the document differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTheDocumentsHaveTheSections checks that a run of the benchmark finds its sections in this repository's documents.
func TestTheDocumentsHaveTheSections(t *testing.T) {
	report, root := stored(t), filepath.Join("..", "..")
	for name, section := range map[string]struct {
		document string
		write    func(io.Writer) error
	}{
		"summary": {"README.md", report.Summary},
		"tables":  {filepath.Join("docs", "reference", "benchmarks.md"), report.Tables},
	} {
		content, err := os.ReadFile(filepath.Join(root, section.document))
		if err != nil {
			t.Fatal(err)
		}
		document := filepath.Join(t.TempDir(), "document.md")
		if err := os.WriteFile(document, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := figures.Update(document, name, section.write); err != nil {
			t.Errorf("%s: %v", section.document, err)
		}
	}
}

func TestADocumentWithoutTheSectionStays(t *testing.T) {
	for what, content := range map[string]string{
		"no section":      "# Figures\n",
		"no end":          "<!-- bench: summary -->\n",
		"a section twice": "<!-- bench: summary -->\n<!-- bench: summary -->\n<!-- /bench -->\n",
	} {
		document := filepath.Join(t.TempDir(), "document.md")
		if err := os.WriteFile(document, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := figures.Update(document, "summary", stored(t).Summary)
		if err == nil || !strings.Contains(err.Error(), document) {
			t.Errorf("%s: error %v", what, err)
		}
		if got, err := os.ReadFile(document); err != nil || string(got) != content {
			t.Errorf("%s: the document is now %q, %v", what, got, err)
		}
	}
}

func TestATurnHasTheMedianOfItsStarts(t *testing.T) {
	turn := figures.Turn{Death: 5}
	turn.TakeStarts([]figures.Turn{
		{ReadyMedian: 9, ReadyP99: 1, ReadySlowest: 2, AgentCPU: 3, RuntimeCPU: 4, AllCPU: 5, IdleCPU: 6},
		{ReadyMedian: 1, ReadyP99: 3, ReadySlowest: 4, AgentCPU: 5, RuntimeCPU: 6, AllCPU: 7, IdleCPU: 8},
		{ReadyMedian: 2, ReadyP99: 2, ReadySlowest: 3, AgentCPU: 4, RuntimeCPU: 5, AllCPU: 6, IdleCPU: 7},
	})
	want := figures.Turn{
		ReadyMedian: 2, ReadyP99: 2, ReadySlowest: 3, AgentCPU: 4, RuntimeCPU: 5, AllCPU: 6, IdleCPU: 7, Death: 5,
	}
	if diff := cmp.Diff(want, turn); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
