package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Report is the JSON report of the benchmark. Times are in seconds, sizes in bytes.
type Report struct {
	Time    string    `json:"time"`
	CPUs    int       `json:"cpus"`
	Kernel  string    `json:"kernel"`
	Starts  []Start   `json:"starts"`
	Deaths  Deaths    `json:"deaths"`
	Deletes []Deletes `json:"deletes"`
	Idle    Idle      `json:"idle"`
}

// Start compares the starts of one number of pods.
type Start struct {
	Pods   int `json:"pods"`
	Rounds int `json:"rounds"`
	// The percentiles are over all pods of all rounds.
	BareP50    float64 `json:"bareP50Seconds"`
	QuartetP50 float64 `json:"quartetP50Seconds"`
	RatioP50   float64 `json:"ratioP50"`
	// The slowest pod of a round; the median over the rounds.
	BareSlowest    float64 `json:"bareSlowestSeconds"`
	QuartetSlowest float64 `json:"quartetSlowestSeconds"`
	RatioSlowest   float64 `json:"ratioSlowest"`

	bare, quartet               []float64
	slowestBare, slowestQuartet []float64
}

// Deaths compares the times until a container that exits is replaced, one container after another among this number of
// pods.
type Deaths struct {
	Pods       int     `json:"pods"`
	BareP50    float64 `json:"bareP50Seconds"`
	BareP99    float64 `json:"bareP99Seconds"`
	QuartetP50 float64 `json:"quartetP50Seconds"`
	QuartetP99 float64 `json:"quartetP99Seconds"`
	RatioP50   float64 `json:"ratioP50"`
	RatioP99   float64 `json:"ratioP99"`
}

// Deletes compares the times until nothing of a number of deleted pods runs; the median over the rounds.
type Deletes struct {
	Pods    int     `json:"pods"`
	Rounds  int     `json:"rounds"`
	Bare    float64 `json:"bareSeconds"`
	Quartet float64 `json:"quartetSeconds"`
	Ratio   float64 `json:"ratio"`
}

// Idle has the resources of an idle node.
type Idle struct {
	Pods      int       `json:"pods"`
	Seconds   float64   `json:"seconds"`
	Processes []Process `json:"processes"`
	RSSBytes  int64     `json:"rssBytes"`
	PSSBytes  int64     `json:"pssBytes"`
	// CPUPercent is of one core.
	CPUPercent float64 `json:"cpuPercent"`
}

// Process has the resources of one of the four idle processes.
type Process struct {
	Name       string  `json:"name"`
	RSSBytes   int64   `json:"rssBytes"`
	PSSBytes   int64   `json:"pssBytes"`
	CPUPercent float64 `json:"cpuPercent"`
}

func (s *Start) summarize() {
	s.BareP50, s.QuartetP50 = median(s.bare), median(s.quartet)
	s.BareSlowest, s.QuartetSlowest = median(s.slowestBare), median(s.slowestQuartet)
	s.RatioP50, s.RatioSlowest = s.QuartetP50/s.BareP50, s.QuartetSlowest/s.BareSlowest
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

func (r *Report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	const mebi = 1 << 20
	fmt.Fprintf(w, "\nFrom the manifest's rename to Ready in /pods, beside the same pods by bare CRI calls (%d CPUs, kernel %s)\n\n", r.CPUs, r.Kernel)
	fmt.Fprintln(w, "PODS\tROUNDS\tBARE P50\tQUARTET P50\tRATIO\tBARE SLOWEST\tQUARTET SLOWEST\tRATIO\t")
	for _, s := range r.Starts {
		fmt.Fprintf(w, "%d\t%d\t%.3f s\t%.3f s\t%.2f\t%.3f s\t%.3f s\t%.2f\t\n",
			s.Pods, s.Rounds, s.BareP50, s.QuartetP50, s.RatioP50, s.BareSlowest, s.QuartetSlowest, s.RatioSlowest)
	}
	fmt.Fprintf(w, "\nFrom the exit of a container to another one in its place, %d pods, one after another\n\n", r.Deaths.Pods)
	fmt.Fprintln(w, "BARE P50\tQUARTET P50\tRATIO\tBARE P99\tQUARTET P99\tRATIO\t")
	fmt.Fprintf(w, "%.3f s\t%.3f s\t%.2f\t%.3f s\t%.3f s\t%.2f\t\n",
		r.Deaths.BareP50, r.Deaths.QuartetP50, r.Deaths.RatioP50, r.Deaths.BareP99, r.Deaths.QuartetP99, r.Deaths.RatioP99)
	fmt.Fprint(w, "\nFrom the manifests' removal until nothing of the pods runs, beside bare calls that stop them all at once\n\n")
	fmt.Fprintln(w, "PODS\tROUNDS\tBARE\tQUARTET\tRATIO\t")
	for _, d := range r.Deletes {
		fmt.Fprintf(w, "%d\t%d\t%.3f s\t%.3f s\t%.2f\t\n", d.Pods, d.Rounds, d.Bare, d.Quartet, d.Ratio)
	}
	fmt.Fprintf(w, "\nIdle with %d pods, over %.0f s\n\n", r.Idle.Pods, r.Idle.Seconds)
	fmt.Fprintln(w, "PROCESS\tRSS\tPSS\tCPU OF A CORE\t")
	for _, p := range r.Idle.Processes {
		fmt.Fprintf(w, "%s\t%d MiB\t%d MiB\t%.2f %%\t\n", p.Name, p.RSSBytes/mebi, p.PSSBytes/mebi, p.CPUPercent)
	}
	fmt.Fprintf(w, "all\t%d MiB\t%d MiB\t%.2f %%\t\n", r.Idle.RSSBytes/mebi, r.Idle.PSSBytes/mebi, r.Idle.CPUPercent)
	return w.Flush()
}
