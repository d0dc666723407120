// Package figures computes and formats the figures of the benchmark: the report that it writes as bench.json, the
// tables that it prints, and the sections of documents that are made of a report.
package figures

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// The names of what is measured: two nodes, and the calls of the runtime that a node cannot do without.
const (
	Bare    = "bare"
	Kubelet = "kubelet"
	Quartet = "quartet"
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

// Turn has the figures of bare calls or of a node with a number of pods, in one round. Times are in seconds.
type Turn struct {
	// ReadyMedian, ReadyP99 and ReadySlowest are from the manifests' rename until Ready in /pods; with bare calls until
	// the container is started. Ten pods and fewer are started five times in a turn; of each figure it has the median.
	ReadyMedian  float64 `json:"readyMedianSeconds"`
	ReadyP99     float64 `json:"readyP99Seconds"`
	ReadySlowest float64 `json:"readySlowestSeconds"`
	// AgentCPU, RuntimeCPU and AllCPU are the processor time of the node, of containerd without its shims, and of the
	// machine, until all pods were Ready. IdleCPU is the time in which processors had nothing to do.
	AgentCPU   float64 `json:"agentCPUSeconds"`
	RuntimeCPU float64 `json:"runtimeCPUSeconds"`
	AllCPU     float64 `json:"allCPUSeconds"`
	IdleCPU    float64 `json:"idleCPUSeconds"`
	// Death is from the kill of a container until its successor is Ready in /pods; with bare calls until it is started.
	// It is the median of at most ten containers, one after another.
	Death float64 `json:"deathSeconds"`
	// Restart is from the kill of the node's processes, which are started again at once, until a new pod is Ready; with
	// bare calls it is the start of one more pod. It is the median of five.
	Restart float64 `json:"restartSeconds"`
	// Gone is from the removal of the manifests until nothing of the pods runs.
	Gone float64 `json:"goneSeconds"`
	// RestCPU is the processor time of the node at rest, in percent of one core, and Memory its memory.
	RestCPU float64 `json:"restCPUPercent"`
	Memory  Memory  `json:"memory"`
}

// TakeStarts takes the figures of several starts in this turn: of each figure the median.
func (t *Turn) TakeStarts(starts []Turn) {
	for _, figure := range []func(*Turn) *float64{
		func(t *Turn) *float64 { return &t.ReadyMedian },
		func(t *Turn) *float64 { return &t.ReadyP99 },
		func(t *Turn) *float64 { return &t.ReadySlowest },
		func(t *Turn) *float64 { return &t.AgentCPU },
		func(t *Turn) *float64 { return &t.RuntimeCPU },
		func(t *Turn) *float64 { return &t.AllCPU },
		func(t *Turn) *float64 { return &t.IdleCPU },
	} {
		var values []float64
		for i := range starts {
			values = append(values, *figure(&starts[i]))
		}
		*figure(t) = Median(values)
	}
}

// Memory is the memory of processes, in bytes. A page that several processes share counts in RSS once for each, and in
// PSS once.
type Memory struct {
	RSS       uint64 `json:"rssBytes"`
	PSS       uint64 `json:"pssBytes"`
	Anonymous uint64 `json:"anonymousBytes"`
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

// The names of the figures of the short table.
const (
	readyMedian  = "Ready, median"
	readySlowest = "Ready, slowest"
	allCPU       = "CPU of everything until then"
	deathToReady = "death to Ready"
	restart      = "agent killed to a new pod Ready"
	gone         = "deleted until nothing runs"
	restCPU      = "CPU at rest"
	restPSS      = "PSS at rest"
)

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
		return Kubelet
	}
	return f.against
}

func figures() []figure {
	const mebi = 1 << 20
	return []figure{
		{name: readyMedian, unit: "s", bare: true, of: func(t Turn) float64 { return t.ReadyMedian },
			aims: map[int]float64{100: 0.5}},
		{name: "Ready, p99", unit: "s", bare: true, of: func(t Turn) float64 { return t.ReadyP99 }},
		{name: readySlowest, unit: "s", bare: true, of: func(t Turn) float64 { return t.ReadySlowest },
			aims: map[int]float64{1: 0.9, 10: 0.9, 100: 0.85, 300: 0.85}},
		{name: "CPU of the agent until then", unit: "s", of: func(t Turn) float64 { return t.AgentCPU }},
		{name: "CPU of containerd until then", unit: "s", bare: true, of: func(t Turn) float64 { return t.RuntimeCPU },
			aims: map[int]float64{100: 0.9}},
		{name: allCPU, unit: "s", bare: true, of: func(t Turn) float64 { return t.AllCPU },
			aims: map[int]float64{100: 0.85}},
		{name: "processors idle until then", unit: "s", bare: true, of: func(t Turn) float64 { return t.IdleCPU }},
		{name: deathToReady, unit: "s", bare: true, against: Bare, of: func(t Turn) float64 { return t.Death },
			aims: map[int]float64{1: 1.1, 10: 1.1, 100: 1.1, 300: 1.1}},
		{name: restart, unit: "s", bare: true, against: Bare, of: func(t Turn) float64 { return t.Restart },
			aims: map[int]float64{100: 1.5}},
		{name: gone, unit: "s", bare: true, of: func(t Turn) float64 { return t.Gone }},
		{name: restCPU, unit: "% of a core", of: func(t Turn) float64 { return t.RestCPU }, aims: map[int]float64{100: 0.2}},
		{name: "resident at rest", unit: "MiB", of: func(t Turn) float64 { return float64(t.Memory.RSS) / mebi }},
		{name: restPSS, unit: "MiB", of: func(t Turn) float64 { return float64(t.Memory.PSS) / mebi },
			aims: map[int]float64{100: 0.8}},
		{name: "anonymous at rest", unit: "MiB", of: func(t Turn) float64 { return float64(t.Memory.Anonymous) / mebi }},
	}
}

// Of returns the turns of bare calls or of a node.
func (s *Size) Of(name string) *[]Turn {
	switch name {
	case Bare:
		return &s.Bare
	case Kubelet:
		return &s.Kubelet
	default:
		return &s.Quartet
	}
}

// median returns the median of a figure over the rounds.
func (s *Size) median(name string, f figure) float64 {
	var values []float64
	for _, turn := range *s.Of(name) {
		values = append(values, f.of(turn))
	}
	return Median(values)
}

// Summarize fills in the ratios when all turns are there.
func (s *Size) Summarize() {
	s.Ratios = map[string]Ratio{}
	for _, f := range figures() {
		peers := *s.Of(f.peer())
		var ratios []float64
		for i, turn := range s.Quartet {
			if peer := f.of(peers[i]); peer > 0 {
				ratios = append(ratios, f.of(turn)/peer)
			}
		}
		if len(ratios) > 0 { // a short start may use less processor time than /proc shows
			s.Ratios[f.name] = Ratio{
				Against: f.peer(), Aim: f.aims[s.Pods],
				Median: Median(ratios), Least: slices.Min(ratios), Largest: slices.Max(ratios),
			}
		}
	}
}

// Median returns the median of the values; 0 without values.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Percentile returns a percentile of the values, by nearest rank; 0 without values.
func Percentile(values []float64, percent int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*percent+99)/100-1]
}

// Slowest returns the largest of the values; 0 without values.
func Slowest(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Max(values)
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
