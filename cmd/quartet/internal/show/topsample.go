package show

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/peertls"
)

// topTimeout bounds each of the questions of a sample, so that a process that hangs delays the screen by no more.
const topTimeout = 2 * time.Second

// errMetricsElsewhere says why a process on another machine has no figures: a metrics socket is only for its machine.
var errMetricsElsewhere = errors.New("metrics are read on its machine: run quartet top there")

// topSample is what `quartet top` knows about a node at one time. What could not be read has an error.
type topSample struct {
	at        time.Time
	processes []topProcess
	streams   []topStream
	followers []topFollower
	workers   []*enginev1.Worker
	pods      []podView
	// podsErr is why workers or pods are missing.
	podsErr error
}

// topProcess is one of the four. CPU is the processor time in seconds since its start, memory is in bytes.
type topProcess struct {
	service            layout.Service
	err                error
	cpu                float64
	memory, goroutines float64
	started            time.Time
}

// topStream is a stream at the service that publishes it. Times are in seconds.
type topStream struct {
	service             layout.Service
	name                string
	subscribers, behind float64
	lag                 float64
	changes             float64
	resumed, begun      float64
	overflows           float64
}

// topFollower is a stream at a service that follows it.
type topFollower struct {
	service     layout.Service
	name        string
	connected   bool
	losses      float64
	lastMessage time.Time
}

// sampleTop asks the services, all at once. A service that does not answer hides nothing of the others.
func (a *querier) sampleTop(ctx context.Context) topSample {
	ctx, cancel := context.WithTimeout(ctx, topTimeout)
	defer cancel()
	services := layout.Services()
	answers := make([]map[string]*dto.MetricFamily, len(services))
	s := topSample{processes: make([]topProcess, len(services))}
	var asking sync.WaitGroup
	for i, service := range services {
		asking.Go(func() { answers[i], s.processes[i].err = a.families(ctx, service) })
	}
	var workersErr error
	asking.Go(func() { s.pods, s.podsErr = a.listPods(ctx) })
	asking.Go(func() {
		var response *enginev1.ListWorkersResponse
		response, workersErr = a.listWorkers(ctx)
		s.workers = response.GetWorkers()
	})
	asking.Wait()
	s.at, s.podsErr = a.clock.Now(), cmp.Or(s.podsErr, workersErr)
	for i, service := range services {
		s.add(i, service, answers[i])
	}
	return s
}

// families returns the metrics of a service by name.
func (a *querier) families(ctx context.Context, service layout.Service) (map[string]*dto.MetricFamily, error) {
	if address, err := a.node.Address(service); err != nil || peertls.OnNetwork(address) {
		return nil, cmp.Or(err, errMetricsElsewhere)
	}
	l, err := layout.New(cmp.Or(a.node.StateDir, layout.DefaultStateDir))
	if err != nil {
		return nil, err
	}
	all, err := metrics.Scrape(ctx, "unix://"+layout.MetricsSocketIn(l.SocketDir(), service), "/metrics")
	if err != nil {
		return nil, err
	}
	byName := make(map[string]*dto.MetricFamily, len(all))
	for _, family := range all {
		byName[family.GetName()] = family
	}
	return byName, nil
}

// add adds the metrics of a service; none if it did not answer.
func (s *topSample) add(i int, service layout.Service, families map[string]*dto.MetricFamily) {
	p := &s.processes[i]
	p.service = service
	if p.err != nil {
		return
	}
	p.cpu, p.memory = total(families["process_cpu_seconds_total"]), total(families["process_resident_memory_bytes"])
	p.goroutines = total(families["go_goroutines"])
	p.started = unix(total(families["process_start_time_seconds"]))
	for _, name := range labels(families["quartet_stream_subscribers"], "stream") {
		of := func(family string, more ...string) float64 {
			return total(families["quartet_stream_"+family], append(more, "stream", name)...)
		}
		s.streams = append(s.streams, topStream{
			service: service, name: name, subscribers: of("subscribers"), lag: of("lag_seconds"), behind: of("lag_messages"),
			changes: of("changes_total"), resumed: of("subscriptions_total", "start", "resumed"),
			begun: of("subscriptions_total"), overflows: of("subscriptions_ended_total", "reason", "overflow"),
		})
	}
	for _, name := range labels(families["quartet_stream_follower_connected"], "stream") {
		of := func(family string) float64 { return total(families["quartet_stream_follower_"+family], "stream", name) }
		s.followers = append(s.followers, topFollower{
			service: service, name: name, connected: of("connected") > 0, losses: of("losses_total"),
			lastMessage: unix(of("last_message_timestamp_seconds")),
		})
	}
}

// unix returns the time of a metric, in seconds since 1970; the zero time for 0.
func unix(seconds float64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(seconds * float64(time.Second/time.Millisecond)))
}

// total returns the sum of a family's samples that have labels, given as names and values.
func total(family *dto.MetricFamily, labels ...string) (sum float64) {
	for _, metric := range family.GetMetric() {
		if !has(metric, labels) {
			continue
		}
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue()
	}
	return sum
}

func has(metric *dto.Metric, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if !slices.ContainsFunc(metric.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == pair[0] && l.GetValue() == pair[1]
		}) {
			return false
		}
	}
	return true
}

// labels returns the values of a label, sorted, each once.
func labels(family *dto.MetricFamily, name string) []string {
	var values []string
	for _, metric := range family.GetMetric() {
		for _, l := range metric.GetLabel() {
			if l.GetName() == name {
				values = append(values, l.GetValue())
			}
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// cpuPercent returns the processor time of a process since the sample before, in percent of one core; less than 0 if
// there is none, or if the process is another one.
func (s *topSample) cpuPercent(before topSample, i int) float64 {
	seconds := s.at.Sub(before.at).Seconds()
	if len(before.processes) != len(s.processes) || seconds <= 0 {
		return -1
	}
	now, then := s.processes[i], before.processes[i]
	if now.err != nil || then.err != nil || !now.started.Equal(then.started) {
		return -1
	}
	const percent = 100
	return max(0, now.cpu-then.cpu) / seconds * percent
}

// changesPerSecond returns the rate of a stream's changes since the sample before; 0 if that has no such stream.
func (s *topSample) changesPerSecond(before topSample, stream topStream) float64 {
	seconds := s.at.Sub(before.at).Seconds()
	for _, then := range before.streams {
		if then.service == stream.service && then.name == stream.name && seconds > 0 {
			return max(0, stream.changes-then.changes) / seconds
		}
	}
	return 0
}

// troubled returns the workers that wait or fail, those that fail first.
func (s *topSample) troubled() []*enginev1.Worker {
	var all []*enginev1.Worker
	for _, w := range s.workers {
		if w.GetLastError() != "" || w.GetWaitsFor() != "" {
			all = append(all, w)
		}
	}
	slices.SortStableFunc(all, func(x, y *enginev1.Worker) int {
		if (x.GetLastError() != "") != (y.GetLastError() != "") {
			if x.GetLastError() != "" {
				return -1
			}
			return 1
		}
		return strings.Compare(title(x.GetNamespace(), x.GetName()), title(y.GetNamespace(), y.GetName()))
	})
	return all
}
