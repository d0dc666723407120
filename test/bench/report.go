package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"text/tabwriter"
)

// Report is the JSON report of the benchmark.
type Report struct {
	Time   string `json:"time"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	Sizes  []Size `json:"sizes"`
}

// Size compares bare calls, the kubelet and Quartet with one number of pods. Each round has one turn of each.
type Size struct {
	Pods    int    `json:"pods"`
	Bare    []Turn `json:"bare"`
	Kubelet []Turn `json:"kubelet"`
	Quartet []Turn `json:"quartet"`
	// Ratios are Quartet's figures divided by those of the peer, by the name of the figure.
	Ratios map[string]Ratio `json:"ratios"`
}

// Ratio is the median of the ratios of all rounds, and the least and the largest of them.
type Ratio struct {
	Against string  `json:"against"`
	Median  float64 `json:"median"`
	Least   float64 `json:"least"`
	Largest float64 `json:"largest"`
	// Aim is what the ratio should be at most; 0 without an aim.
	Aim float64 `json:"aim,omitempty"`
}

// figure is a figure of a turn.
type figure struct {
	name, unit string
	// bare says whether bare calls have it. Quartet is compared with them if against says so, else with the kubelet.
	bare    bool
	against string
	of      func(Turn) float64
	// aims has by the number of pods what the ratio should be at most.
	aims map[int]float64
}

// peer returns what Quartet is compared with.
func (f figure) peer() string {
	if f.against == "" {
		return nodeKubelet
	}
	return f.against
}

func figures() []figure {
	const mebi = 1 << 20
	return []figure{
		{name: "Ready, median", unit: "s", bare: true, of: func(t Turn) float64 { return t.ReadyMedian },
			aims: map[int]float64{100: 0.5}},
		{name: "Ready, p99", unit: "s", bare: true, of: func(t Turn) float64 { return t.ReadyP99 }},
		{name: "Ready, slowest", unit: "s", bare: true, of: func(t Turn) float64 { return t.ReadySlowest },
			aims: map[int]float64{1: 0.9, 10: 0.9, 100: 0.85, 300: 0.85}},
		{name: "CPU of the agent until then", unit: "s", of: func(t Turn) float64 { return t.AgentCPU }},
		{name: "CPU of containerd until then", unit: "s", bare: true, of: func(t Turn) float64 { return t.RuntimeCPU },
			aims: map[int]float64{100: 0.9}},
		{name: "CPU of everything until then", unit: "s", bare: true, of: func(t Turn) float64 { return t.AllCPU },
			aims: map[int]float64{100: 0.85}},
		{name: "processors idle until then", unit: "s", bare: true, of: func(t Turn) float64 { return t.IdleCPU }},
		{name: "death to Ready", unit: "s", bare: true, against: bareCalls, of: func(t Turn) float64 { return t.Death },
			aims: map[int]float64{1: 1.1, 10: 1.1, 100: 1.1, 300: 1.1}},
		{name: "agent killed to a new pod Ready", unit: "s", of: func(t Turn) float64 { return t.Restart }},
		{name: "deleted until nothing runs", unit: "s", bare: true, of: func(t Turn) float64 { return t.Gone }},
		{name: "CPU at rest", unit: "% of a core", of: func(t Turn) float64 { return t.RestCPU }, aims: map[int]float64{100: 0.2}},
		{name: "resident at rest", unit: "MiB", of: func(t Turn) float64 { return float64(t.Memory.RSS) / mebi }},
		{name: "PSS at rest", unit: "MiB", of: func(t Turn) float64 { return float64(t.Memory.PSS) / mebi },
			aims: map[int]float64{100: 0.8}},
		{name: "anonymous at rest", unit: "MiB", of: func(t Turn) float64 { return float64(t.Memory.Anonymous) / mebi }},
	}
}

// of returns the turns of bare calls or of a node.
func (s *Size) of(name string) *[]Turn {
	switch name {
	case bareCalls:
		return &s.Bare
	case nodeKubelet:
		return &s.Kubelet
	default:
		return &s.Quartet
	}
}

// median returns the median of a figure over the rounds.
func (s *Size) median(name string, f figure) float64 {
	var values []float64
	for _, turn := range *s.of(name) {
		values = append(values, f.of(turn))
	}
	return median(values)
}

func (s *Size) summarize() {
	s.Ratios = map[string]Ratio{}
	for _, f := range figures() {
		peers := *s.of(f.peer())
		var ratios []float64
		for i, turn := range s.Quartet {
			if peer := f.of(peers[i]); peer > 0 {
				ratios = append(ratios, f.of(turn)/peer)
			}
		}
		if len(ratios) > 0 { // a short start may use less processor time than /proc shows
			s.Ratios[f.name] = Ratio{
				Against: f.peer(), Aim: f.aims[s.Pods],
				Median: median(ratios), Least: slices.Min(ratios), Largest: slices.Max(ratios),
			}
		}
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// percentile returns a percentile of the values, by nearest rank.
func percentile(values []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

func slowest(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Max(values)
}

// print writes a table in Markdown for each number of pods.
func (r *Report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintf(w, "\n%d CPUs, kernel %s. The median of the rounds; a ratio has its range over the rounds.\n", r.CPUs, r.Kernel)
	for i := range r.Sizes {
		size := &r.Sizes[i]
		fmt.Fprintf(w, "\nPods: %d, rounds: %d\n\n", size.Pods, len(size.Quartet))
		fmt.Fprintln(w, "| what\t| bare calls\t| kubelet\t| Quartet\t| ratio\t| to\t| at most\t|")
		fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
		for _, f := range figures() {
			bare := ""
			if f.bare {
				bare = size.text(bareCalls, f)
			}
			ratio, against, aim := size.ratio(f)
			fmt.Fprintf(w, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n",
				f.name, bare, size.text(nodeKubelet, f), size.text(nodeQuartet, f), ratio, against, aim)
		}
	}
	return w.Flush()
}

// text returns a figure with its unit, and three digits of it.
func (s *Size) text(name string, f figure) string {
	value := s.median(name, f)
	digits := 2
	if value > 0 {
		digits = max(0, min(3, 2-int(math.Floor(math.Log10(value)))))
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + " " + f.unit
}

func (s *Size) ratio(f figure) (text, against, aim string) {
	ratio, known := s.Ratios[f.name]
	if !known {
		return "", "", ""
	}
	if ratio.Aim > 0 {
		aim = strconv.FormatFloat(ratio.Aim, 'f', -1, 64)
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", ratio.Median, ratio.Least, ratio.Largest), ratio.Against, aim
}
