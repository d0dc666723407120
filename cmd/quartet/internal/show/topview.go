package show

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// topTab is a page of `quartet top`.
type topTab int

const (
	topOverview topTab = iota
	topStreams
	topWorkers
	topPods
	topEvents
)

// topTabs are the names of the pages, which 1 to 5 select.
func topTabs() []string { return []string{"overview", "streams", "workers", "pods", "events"} }

// topView is what one screen shows.
type topView struct {
	before, now topSample
	events      []happening
	// missing has a line for each service whose events are missing.
	missing  []string
	interval time.Duration
}

// lines returns the lines of a page without its header.
func (v topView) lines(tab topTab) []string {
	switch tab {
	case topStreams:
		return slices.Concat(v.streams(), []string{""}, v.followers(), v.unknownStreams())
	case topWorkers:
		return v.workers()
	case topPods:
		return v.pods()
	case topEvents:
		return v.happenings(len(v.events))
	case topOverview:
		return v.overview()
	default:
		return nil
	}
}

// overview has the processes, the state of all streams in a line, workers that wait or fail, and the last events.
func (v topView) overview() []string {
	const most = 6
	out := slices.Concat(v.processes(), []string{"", v.streamsLine(), ""})
	switch troubled := v.now.troubled(); {
	case v.now.podsErr != nil:
		out = append(out, "Workers: "+oneLine(v.now.podsErr.Error()))
	case len(troubled) == 0:
		out = append(out, "Workers: none waits or fails.")
	default:
		rows := [][]string{{"WORKER", "STATE", "NEXT", "WAITS FOR, OR LAST ERROR"}}
		for _, w := range troubled[:min(most, len(troubled))] {
			why := w.GetLastError()
			if why == "" {
				why = w.GetWaitsFor()
			}
			rows = append(rows, []string{
				title(w.GetNamespace(), w.GetName()), workerName(w.GetState()), until(w.GetNextSyncAt(), v.now.at), oneLine(why),
			})
		}
		out = append(out, align(rows)...)
		if more := len(troubled) - most; more > 0 {
			out = append(out, fmt.Sprintf("and %d more: press 3", more))
		}
	}
	return slices.Concat(out, []string{""}, v.happenings(most))
}

// header is the first line: the node's pods and the time.
func (v topView) header() string {
	ready, failing := 0, 0
	for _, p := range v.now.pods {
		if s := summarize(p.pod, false); s.total > 0 && s.ready == s.total {
			ready++
		}
	}
	for _, w := range v.now.workers {
		if w.GetLastError() != "" {
			failing++
		}
	}
	pods := fmt.Sprintf("%d pods, %d ready, %d failing", len(v.now.pods), ready, failing)
	if v.now.podsErr != nil {
		pods = "pods are not known"
	}
	return fmt.Sprintf("%s  %s  every %s", v.now.at.Format(time.TimeOnly), pods, v.interval)
}

func (v topView) processes() []string {
	rows := [][]string{{"PROCESS", "CPU", "MEMORY", "GOROUTINES", "AGE"}}
	for i, p := range v.now.processes {
		if p.err != nil {
			rows = append(rows, []string{string(p.service), noValue, noValue, noValue, p.missing()})
			continue
		}
		cpu := noValue
		if percent := v.now.cpuPercent(v.before, i); percent >= 0 {
			cpu = fmt.Sprintf("%.1f %%", percent)
		}
		rows = append(rows, []string{
			string(p.service), cpu, mebibytes(int64(p.memory)), fmt.Sprintf("%.0f", p.goroutines), age(p.started, v.now.at),
		})
	}
	return align(rows)
}

// missing says why there are no figures of a process.
func (p topProcess) missing() string {
	if errors.Is(p.err, errMetricsElsewhere) {
		return "not available: " + p.err.Error()
	}
	return "does not answer: " + oneLine(p.err.Error())
}

// unknownStreams has a line for each process whose streams are not known.
func (v topView) unknownStreams() (lines []string) {
	for _, p := range v.now.processes {
		if p.err != nil {
			lines = append(lines, fmt.Sprintf("No streams of %s: %s", p.service, p.missing()))
		}
	}
	return lines
}

// streamsLine says in one line whether all streams flow.
func (v topView) streamsLine() string {
	var lost, losses, resumed float64
	for _, f := range v.now.followers {
		losses += f.losses
		if !f.connected {
			lost++
		}
	}
	slowest := topStream{}
	for _, s := range v.now.streams {
		resumed += s.resumed
		if s.lag > slowest.lag {
			slowest = s
		}
	}
	unknown := len(v.unknownStreams())
	if unknown == len(v.now.processes) {
		return "Streams: not known, see the processes"
	}
	connected := fmt.Sprintf("%d connected", len(v.now.followers))
	if lost > 0 {
		connected = fmt.Sprintf("%.0f of %d not connected", lost, len(v.now.followers))
	}
	text := fmt.Sprintf("Streams: %s, %.0f lost, %.0f resumed", connected, losses, resumed)
	if slowest.lag > 0 {
		text += fmt.Sprintf("; %s is %s behind", slowest.name, seconds(slowest.lag))
	}
	if unknown > 0 {
		text += fmt.Sprintf("; not known of %d processes", unknown)
	}
	return text
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

func (v topView) streams() []string {
	rows := [][]string{{"STREAM", "FROM", "SUBS", "LAG", "PER S", "BEGUN", "RESUMED", "OVERFLOW"}}
	for _, s := range v.now.streams {
		lag := seconds(s.lag)
		if s.behind > 0 {
			lag = fmt.Sprintf("%s, %.0f", lag, s.behind)
		}
		rows = append(rows, []string{
			s.name, string(s.service), fmt.Sprintf("%.0f", s.subscribers), lag,
			fmt.Sprintf("%.1f", v.now.changesPerSecond(v.before, s)), fmt.Sprintf("%.0f", s.begun),
			fmt.Sprintf("%.0f", s.resumed), fmt.Sprintf("%.0f", s.overflows),
		})
	}
	return align(rows)
}

func (v topView) followers() []string {
	rows := [][]string{{"FOLLOWED", "BY", "CONNECTED", "LOST", "LAST MESSAGE"}}
	for _, f := range v.now.followers {
		last := noValue
		if !f.lastMessage.IsZero() {
			last = age(f.lastMessage, v.now.at)
		}
		rows = append(rows, []string{f.name, string(f.service), yesNo(f.connected), fmt.Sprintf("%.0f", f.losses), last})
	}
	return align(rows)
}

func (v topView) workers() []string {
	if v.now.podsErr != nil {
		return []string{oneLine(v.now.podsErr.Error())}
	}
	return tableLines(workerColumns, workerRow, v.now.workers, v.now.at)
}

func (v topView) pods() []string {
	if v.now.podsErr != nil {
		return []string{oneLine(v.now.podsErr.Error())}
	}
	return tableLines(podColumns, podView.row, v.now.pods, v.now.at)
}

// tableLines returns what `quartet get` prints for items, without the wide columns.
func tableLines[T any](columns []column, row func(T, time.Time) []any, items []T, now time.Time) []string {
	rows := [][]string{nil}
	for _, c := range columns {
		if !c.wide {
			rows[0] = append(rows[0], strings.ToUpper(c.name))
		}
	}
	for _, item := range items {
		var cells []string
		for i, cell := range row(item, now) {
			if !columns[i].wide {
				cells = append(cells, fmt.Sprint(cell))
			}
		}
		rows = append(rows, cells)
	}
	return align(rows)
}

// happenings returns the last events, the newest first.
func (v topView) happenings(most int) []string {
	if len(v.events) == 0 && len(v.missing) > 0 {
		return v.missing
	}
	if len(v.events) == 0 {
		return []string{"Events: none."}
	}
	rows := [][]string{{"AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"}}
	for _, h := range slices.Backward(v.events[max(0, len(v.events)-most):]) {
		object := title(h.Namespace, h.Pod)
		if h.Kind == kindNode {
			object = "node " + h.Node
		}
		rows = append(rows, []string{age(h.Time, v.now.at), h.Type, h.Reason, object, oneLine(h.Message)})
	}
	return slices.Concat(v.missing, align(rows))
}

// align returns rows as lines with aligned columns.
func align(rows [][]string) []string {
	const gap = 2
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, gap, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a strings.Builder does not fail
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
}
