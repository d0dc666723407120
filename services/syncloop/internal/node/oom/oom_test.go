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

	"github.com/quartet-node/quartet/services/syncloop/internal/node/kernellog"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/oom"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kernel is a machine's log: that of one boot.
type kernel struct {
	t    *testing.T
	boot string
	// first is the number of the oldest record that there still is.
	first   uint64
	records []kernellog.Record
	now     time.Duration
	more    chan struct{}
	// broken is why the log cannot be read on.
	broken error
}

func boots(t *testing.T, name string) *kernel {
	return &kernel{t: t, boot: name, now: time.Hour, more: make(chan struct{}, 1)}
}

func (k *kernel) says(byKernel bool, lines ...string) {
	for _, line := range lines {
		k.records = append(k.records, kernellog.Record{Sequence: k.first + uint64(len(k.records)), At: k.now, Kernel: byKernel, Message: line})
	}
	select {
	case k.more <- struct{}{}:
	default:
	}
}

func (k *kernel) kills(pid int) {
	k.says(true, fmt.Sprintf("Out of memory: Killed process %d (java) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0", pid))
}

// reader is an opened log.
type reader struct {
	*kernel
	at int
}

func (r *reader) Pending() (kernellog.Record, bool, error) {
	if r.at == len(r.records) {
		return kernellog.Record{}, false, r.broken
	}
	r.at++
	return r.records[r.at-1], true, nil
}

func (r *reader) Next(ctx context.Context) (kernellog.Record, error) {
	for {
		if record, ok, err := r.Pending(); ok || err != nil {
			return record, err
		}
		select {
		case <-ctx.Done():
			return kernellog.Record{}, ctx.Err()
		case <-r.more:
		}
	}
}

func (r *reader) Close() error { return nil }

// node is a syncloop, started again and again.
type node struct {
	t    *testing.T
	file string
	// events is what was told since it was asked last, said what is in the log of the process.
	events   []string
	said     bytes.Buffer
	registry *prometheus.Registry
}

func (n *node) NodeWarning(_ context.Context, reason, message string) {
	n.events = append(n.events, reason+": "+message)
}

// told returns what was told since it was asked last.
func (n *node) told() string {
	synctest.Wait()
	all := strings.Join(n.events, "\n")
	n.events = nil
	return all
}

// start runs it until what is returned is called, or the test ends.
func (n *node) start(k *kernel) (stop func()) {
	n.registry = prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(n.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		oom.Run(ctx, oom.Config{
			Open: func() (oom.Log, error) { return &reader{kernel: k}, nil }, File: n.file, Boot: k.boot,
			Now: func() time.Duration { return k.now }, Events: n, Logger: slog.New(slog.NewTextHandler(&n.said, nil)), Metrics: oom.NewMetrics(n.registry),
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

const first, second, third = "SystemOOM: System OOM encountered, victim process: java, pid: 1",
	"SystemOOM: System OOM encountered, victim process: java, pid: 2", "SystemOOM: System OOM encountered, victim process: java, pid: 3"

// TestAKillIsToldOnce whatever is started again: the node tells what happened while it was away, and nothing from before its first
// start, nor from long ago.
func TestAKillIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, k := newNode(t), boots(t, "this boot")
		k.kills(1) // before the node was there
		stop := n.start(k)
		expect(t, "what was before", n.told(), "")
		k.kills(2)
		expect(t, "what happens", n.told(), second)
		stop()
		stop = n.start(k)
		expect(t, "a restart", n.told(), "")
		stop()
		k.kills(3)
		k.now += 59 * time.Minute
		stop = n.start(k)
		expect(t, "what happened meanwhile", n.told(), third)
		stop()
		k.kills(1)
		k.now += 61 * time.Minute
		stop = n.start(k)
		expect(t, "what happened long ago", n.told(), "")
		k.now -= 2 * time.Hour // the log's clock is not as exact as that
		k.kills(2)
		expect(t, "what happens then", n.told(), second)
		stop()

		rebooted := boots(t, "the next boot")
		rebooted.kills(1)
		stop = n.start(rebooted)
		expect(t, "what happened since the boot", n.told(), first)
		stop()
	})
}

// TestOnlyTheMachinesOwnWantIsAnEvent, and only what the kernel itself has said.
func TestOnlyTheMachinesOwnWantIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, k := newNode(t), boots(t, "boot")
		defer n.start(k)()
		synctest.Wait()
		k.says(true, "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/kubepods/podx,task_memcg=/kubepods/podx/c,task=hello,pid=7,uid=0",
			"Memory cgroup out of memory: Killed process 7 (hello) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0")
		synctest.Wait()
		k.says(false, "Out of memory: Killed process 8 (liar) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0")
		expect(t, "the limit of a cgroup, and what a process says", n.told(), "")
		for _, part := range []string{"reached its limit of memory", "pid=7 process=hello cgroup=/kubepods/podx/c limit=/kubepods/podx\n"} {
			if !strings.Contains(n.said.String(), part) || strings.Contains(n.said.String(), "liar") {
				t.Errorf("the log has not %q:\n%s", part, &n.said)
			}
		}
		k.kills(3)
		expect(t, "the machine's want", n.told(), third)
		counted := `# HELP quartet_oom_kills_total Processes that the kernel has killed for want of memory, by whose: the system's, or a cgroup's with a limit.
# TYPE quartet_oom_kills_total counter
quartet_oom_kills_total{scope="cgroup"} 1
quartet_oom_kills_total{scope="system"} 1
`
		if err := testutil.GatherAndCompare(n.registry, strings.NewReader(counted)); err != nil {
			t.Error(err)
		}
	})
}

// TestALogThatCannotBeReadIsSaidOnce, when it is opened or later, and nothing else comes of it.
func TestALogThatCannotBeReadIsSaidOnce(t *testing.T) {
	n, k := newNode(t), boots(t, "boot")
	k.broken = errors.New("input/output error")
	for _, open := range []func() (oom.Log, error){
		func() (oom.Log, error) { return &reader{kernel: k}, nil },
		func() (oom.Log, error) { return nil, errors.New("open /dev/kmsg: operation not permitted") },
	} {
		oom.Run(t.Context(), oom.Config{Open: open, File: n.file, Logger: slog.New(slog.NewTextHandler(&n.said, nil))})
	}
	lines := strings.Split(strings.TrimSpace(n.said.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "input/output error") || !strings.Contains(lines[1], "operation not permitted") {
		t.Errorf("the log is\n%s", &n.said)
	}
}

// TestAPlaceThatCannotBeKeptIsSaid, and kills are told all the same.
func TestAPlaceThatCannotBeKeptIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, k := newNode(t), boots(t, "boot")
		n.file = filepath.Join(n.file, "no directory")
		stop := n.start(k)
		synctest.Wait()
		k.kills(1)
		synctest.Wait()
		k.kills(2)
		expect(t, "kills", n.told(), first+"\n"+second)
		stop()
		if got := strings.Count(n.said.String(), "may be told again"); got != 1 {
			t.Errorf("it is said %d times:\n%s", got, &n.said)
		}
	})
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("of %s is told %q, want %q", what, got, want)
	}
}
