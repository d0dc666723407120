package oom_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kernel is a fake kernel's log of one boot.
type kernel struct {
	t    *testing.T
	boot string
	// first is the sequence number of the oldest record.
	first   uint64
	records []oom.Record
	now     time.Duration
	more    chan struct{}
	// broken is returned after the last record.
	broken error
}

func newKernel(t *testing.T, name string) *kernel {
	return &kernel{t: t, boot: name, now: time.Hour, more: make(chan struct{}, 1)}
}

func (k *kernel) logs(byKernel bool, lines ...string) {
	for _, line := range lines {
		k.records = append(k.records, oom.Record{
			Sequence: k.first + uint64(len(k.records)), At: k.now, Kernel: byKernel, Message: line,
		})
	}
	select {
	case k.more <- struct{}{}:
	default:
	}
}

func (k *kernel) kills(pid int) {
	k.logs(true, fmt.Sprintf("Out of memory: Killed process %d (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0", pid))
}

// reader is the opened log.
type reader struct {
	*kernel
	at int
}

func (r *reader) Pending() (oom.Record, bool, error) {
	if r.at == len(r.records) {
		return oom.Record{}, false, r.broken
	}
	r.at++
	return r.records[r.at-1], true, nil
}

func (r *reader) Next(ctx context.Context) (oom.Record, error) {
	for {
		if record, ok, err := r.Pending(); ok || err != nil {
			return record, err
		}
		select {
		case <-ctx.Done():
			return oom.Record{}, ctx.Err()
		case <-r.more:
		}
	}
}

func (r *reader) Close() error { return nil }

// node is a syncloop that can be restarted.
type node struct {
	t    *testing.T
	file string
	// events has the events since the last call of newEvents.
	events   []string
	log      bytes.Buffer
	registry *prometheus.Registry
}

func (n *node) NodeWarning(_ context.Context, reason, message string) {
	n.events = append(n.events, reason+": "+message)
}

// newEvents returns the events since the last call.
func (n *node) newEvents() string {
	synctest.Wait()
	all := strings.Join(n.events, "\n")
	n.events = nil
	return all
}

// start runs the node until stop is called or the test ends.
func (n *node) start(k *kernel) (stop func()) {
	n.registry = prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		oom.Run(ctx, oom.Config{
			Open: func() (oom.Log, error) { return &reader{kernel: k}, nil }, File: n.file, Boot: k.boot,
			Now: func() time.Duration { return k.now }, Events: n,
			Logger: slog.New(slog.NewTextHandler(&n.log, nil)), Metrics: oom.NewMetrics(n.registry),
		})
	}()
	return func() {
		cancel()
		<-ended
	}
}

func newNode(t *testing.T) *node {
	return &node{t: t, file: filepath.Join(t.TempDir(), "oom-told.json")}
}

const (
	first  = "SystemOOM: System OOM encountered, victim process: java, pid: 1"
	second = "SystemOOM: System OOM encountered, victim process: java, pid: 2"
	third  = "SystemOOM: System OOM encountered, victim process: java, pid: 3"
)

// TestAKillIsReportedOnce checks that each kill is reported once across restarts. The node reports kills that happened
// while it was down, but none from before its first start and none that are too old.
func TestAKillIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, k := newNode(t), newKernel(t, "this boot")
		k.kills(1) // before the first start
		stop := n.start(k)
		expect(t, "before the first start", n.newEvents(), "")
		k.kills(2)
		expect(t, "while it runs", n.newEvents(), second)
		stop()
		stop = n.start(k)
		expect(t, "after a restart", n.newEvents(), "")
		stop()
		k.kills(3)
		k.now += 59 * time.Minute
		stop = n.start(k)
		expect(t, "while it was down", n.newEvents(), third)
		stop()
		k.kills(1)
		k.now += 61 * time.Minute
		stop = n.start(k)
		expect(t, "too long ago", n.newEvents(), "")
		k.now -= 2 * time.Hour // the log's clock is inexact
		k.kills(2)
		expect(t, "after that", n.newEvents(), second)
		stop()

		rebooted := newKernel(t, "the next boot")
		rebooted.kills(1)
		stop = n.start(rebooted)
		expect(t, "after a reboot", n.newEvents(), first)
		stop()
	})
}

// TestOnlyAShortageOfTheMachineIsAnEvent checks that only a kill because of the machine's memory becomes an event, and
// only if the kernel itself logged it.
func TestOnlyAShortageOfTheMachineIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, k := newNode(t), newKernel(t, "boot")
		defer n.start(k)()
		synctest.Wait()
		k.logs(true, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/podx,task_memcg=/kubepods/podx/c,task=hello,pid=7,uid=0",
			"Memory cgroup out of memory: Killed process 7 (hello) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0")
		synctest.Wait()
		k.logs(false, "Out of memory: Killed process 8 (liar) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0")
		expect(t, "the limit of a cgroup, and a record of a process", n.newEvents(), "")
		for _, part := range []string{"reached its limit of memory", "pid=7 process=hello cgroup=/kubepods/podx/c limit=/kubepods/podx\n"} {
			if !strings.Contains(n.log.String(), part) || strings.Contains(n.log.String(), "liar") {
				t.Errorf("the log does not contain %q:\n%s", part, &n.log)
			}
		}
		k.kills(3)
		expect(t, "the machine's memory", n.newEvents(), third)
		counted := `# HELP quartet_oom_kills_total Processes that the kernel killed because memory ran out, by scope: of the system, or of a cgroup with a limit.
# TYPE quartet_oom_kills_total counter
quartet_oom_kills_total{scope="cgroup"} 1
quartet_oom_kills_total{scope="system"} 1
`
		if err := testutil.GatherAndCompare(n.registry, strings.NewReader(counted)); err != nil {
			t.Error(err)
		}
	})
}

// TestALogThatCannotBeReadIsSaidOnce checks that Run logs an error of opening or reading once and returns.
func TestALogThatCannotBeReadIsSaidOnce(t *testing.T) {
	n, k := newNode(t), newKernel(t, "boot")
	k.broken = errors.New("input/output error")
	for _, open := range []func() (oom.Log, error){
		func() (oom.Log, error) { return &reader{kernel: k}, nil },
		func() (oom.Log, error) { return nil, errors.New("open /dev/kmsg: operation not permitted") },
	} {
		oom.Run(t.Context(), oom.Config{Open: open, File: n.file, Logger: slog.New(slog.NewTextHandler(&n.log, nil))})
	}
	lines := strings.Split(strings.TrimSpace(n.log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "input/output error") ||
		!strings.Contains(lines[1], "operation not permitted") {
		t.Errorf("the log is\n%s", &n.log)
	}
}

// TestAPlaceThatCannotBeKeptIsReported checks that kills are reported even if the position cannot be saved.
func TestAPlaceThatCannotBeKeptIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, k := newNode(t), newKernel(t, "boot")
		n.file = filepath.Join(n.file, "no directory")
		stop := n.start(k)
		synctest.Wait()
		k.kills(1)
		synctest.Wait()
		k.kills(2)
		expect(t, "kills", n.newEvents(), first+"\n"+second)
		stop()
		if got := strings.Count(n.log.String(), "may be reported again"); got != 1 {
			t.Errorf("it is logged %d times:\n%s\nwant 1", got, &n.log)
		}
	})
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: events %q, want %q", what, got, want)
	}
}
