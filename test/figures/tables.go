package figures

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// Read reads a report from a file.
func Read(file string) (*Report, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report Report
	if err := json.Unmarshal(data, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &report, nil
}

// Tables writes a table in Markdown for each number of pods: all figures, with their ratios and aims.
func (r *Report) Tables(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d CPUs, kernel %s, %s. The median of the rounds; a ratio has its range over the rounds.\n",
		r.CPUs, r.Kernel, r.day())
	for i := range r.Sizes {
		size := &r.Sizes[i]
		fmt.Fprintf(&text, "\n**%s**, %s:\n\n", count(size.Pods, "pod"), count(len(size.Quartet), "round"))
		rows := [][]string{{"what", "bare calls", "kubelet", "Quartet", "ratio", "to", "at most"}}
		for _, f := range figures() {
			bare := ""
			if f.bare {
				bare = size.text(Bare, f)
			}
			ratio, against, aim := size.ratio(f)
			rows = append(rows, []string{f.name, bare, size.text(Kubelet, f), size.text(Quartet, f), ratio, against, aim})
		}
		if err := table(&text, rows); err != nil {
			return err
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// headline is a line of the short table.
type headline struct {
	what string
	// pods and figure say which figure it shows.
	pods   int
	figure string
}

func headlines() []headline {
	const one, some, many = 1, 10, 100
	return []headline{
		{"1 pod Ready", one, readySlowest},
		{"10 pods at once, slowest", some, readySlowest},
		{"100 pods at once, median", many, readyMedian},
		{"100 pods at once, slowest", many, readySlowest},
		{"CPU time of the whole machine until then", many, allCPU},
		{"from a container's death to Ready, among 100 pods", many, deathToReady},
		{"all processes killed and started, until a new pod is Ready, among 100", many, restart},
		{"100 pods deleted, until nothing runs", many, gone},
		{"CPU at rest, 100 pods", many, restCPU},
		{"memory at rest (PSS), 100 pods", many, restPSS},
	}
}

// Summary writes the short table, with the figures that the report has.
func (r *Report) Summary(out io.Writer) error {
	rows := [][]string{{"what", "Quartet", "kubelet", "bare CRI calls"}}
	for _, line := range headlines() {
		for i := range r.Sizes {
			size := &r.Sizes[i]
			if size.Pods != line.pods {
				continue
			}
			for _, f := range figures() {
				if f.name != line.figure {
					continue
				}
				bare := ""
				if f.bare {
					bare = size.text(Bare, f)
				}
				rows = append(rows, []string{line.what, size.text(Quartet, f), size.text(Kubelet, f), bare})
			}
		}
	}
	return table(out, rows)
}

// table writes rows, the first of which is the head, with aligned columns.
func table(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	for i, row := range rows {
		fmt.Fprintf(w, "| %s\t|\n", strings.Join(row, "\t| "))
		if i == 0 {
			fmt.Fprintln(w, strings.Repeat("|---\t", len(row))+"|")
		}
	}
	return w.Flush()
}

// day returns the day of the report's time.
func (r *Report) day() string {
	day, _, _ := strings.Cut(r.Time, "T")
	return day
}

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprint(n, " ", noun, "s")
}

// documentMode is the mode of documents in a checkout.
const documentMode = 0o644

// Update replaces a section of a document, a file, by what write writes. The section is between the lines
// "<!-- bench: NAME -->" and "<!-- /bench -->", which stay. It returns an error if the document does not have the
// section exactly once.
func Update(file, name string, write func(io.Writer) error) error {
	document, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := []byte("<!-- bench: "+name+" -->\n"), []byte("<!-- /bench -->\n")
	before, rest, found := bytes.Cut(document, begin)
	_, after, ended := bytes.Cut(rest, end)
	if !found || !ended || bytes.Contains(rest, begin) {
		return fmt.Errorf("%s does not have the section %q, from %q to %q, exactly once", file, name,
			bytes.TrimSpace(begin), bytes.TrimSpace(end))
	}
	var section bytes.Buffer
	if err := write(&section); err != nil {
		return err
	}
	updated := bytes.Join([][]byte{before, begin, []byte("\n"), section.Bytes(), []byte("\n"), end, after}, nil)
	return os.WriteFile(file, updated, documentMode)
}
