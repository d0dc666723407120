package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/quartet-node/quartet/test/figures"
)

// Volumes is the JSON report of pods with volumes. Times are in seconds.
type Volumes struct {
	Time   string       `json:"time"`
	CPUs   int          `json:"cpus"`
	Kernel string       `json:"kernel"`
	Pods   int          `json:"pods"`
	Rounds int          `json:"rounds"`
	Modes  []VolumeMode `json:"modes"`
}

// VolumeMode compares both nodes with one value of attachRequired.
type VolumeMode struct {
	Attach  bool       `json:"attachRequired"`
	Kubelet VolumeNode `json:"kubelet"`
	Quartet VolumeNode `json:"quartet"`
	// Ratios are Quartet's median divided by the kubelet's, by the name of the figure.
	Ratios map[string]float64 `json:"ratios"`
}

// VolumeNode has the figures of a node.
type VolumeNode struct {
	Rounds []VolumeRound `json:"rounds"`
}

// VolumeRound has the figures of a node in one round.
type VolumeRound struct {
	// Median and Slowest are the times from a pod's creation to Ready at the API server.
	Median  float64 `json:"readyMedianSeconds"`
	Slowest float64 `json:"readySlowestSeconds"`
	// StartCPU is the processor time until all pods were Ready.
	StartCPU float64 `json:"startCPUSeconds"`
	Starts   Calls   `json:"startCalls"`
	// Gone is the time from the first deletion until no pod is left and nothing is staged, and StopCPU the processor time
	// meanwhile.
	Gone    float64 `json:"goneSeconds"`
	StopCPU float64 `json:"stopCPUSeconds"`
	Stops   Calls   `json:"stopCalls"`
}

// volumeFigure is a figure of a round.
type volumeFigure struct {
	name, unit string
	of         func(VolumeRound) float64
}

func volumeFigures() []volumeFigure {
	return []volumeFigure{
		{"Ready, median", "s", func(r VolumeRound) float64 { return r.Median }},
		{"Ready, slowest", "s", func(r VolumeRound) float64 { return r.Slowest }},
		{"CPU until all are Ready", "s", func(r VolumeRound) float64 { return r.StartCPU }},
		{"API requests of the start", "", func(r VolumeRound) float64 { return float64(r.Starts.Total) }},
		{"most of them in a second", "", func(r VolumeRound) float64 { return float64(r.Starts.Peak) }},
		{"gone and unstaged", "s", func(r VolumeRound) float64 { return r.Gone }},
		{"CPU until then", "s", func(r VolumeRound) float64 { return r.StopCPU }},
		{"API requests of the end", "", func(r VolumeRound) float64 { return float64(r.Stops.Total) }},
	}
}

// median returns the median of a figure over the rounds.
func (n VolumeNode) median(f volumeFigure) float64 {
	values := make([]float64, 0, len(n.Rounds))
	for _, r := range n.Rounds {
		values = append(values, f.of(r))
	}
	return figures.Median(values)
}

func (m *VolumeMode) summarize() {
	m.Ratios = map[string]float64{}
	for _, f := range volumeFigures() {
		m.Ratios[f.name] = m.Quartet.median(f) / m.Kubelet.median(f)
	}
}

func (v Volumes) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, m := range v.Modes {
		fmt.Fprintf(w, "\n%d pods with a staged volume each, attachRequired %t, beside the kubelet; the median of %d rounds (%d CPUs, kernel %s)\n\n",
			v.Pods, m.Attach, v.Rounds, v.CPUs, v.Kernel)
		fmt.Fprintln(w, "\tKUBELET\tQUARTET\tRATIO\t")
		for _, f := range volumeFigures() {
			digits := 2
			if f.unit == "" {
				digits = 0
			}
			fmt.Fprintf(w, "%s\t%.*f %s\t%.*f %s\t%.2f\t\n",
				f.name, digits, m.Kubelet.median(f), f.unit, digits, m.Quartet.median(f), f.unit, m.Ratios[f.name])
		}
	}
	return w.Flush()
}
