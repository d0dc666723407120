package shutdown_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/logind"
	"github.com/quartet-node/quartet/services/nodestatus/internal/shutdown"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine has a logind and a syncloop, on the clock of the bubble. It records calls with the second.
type machine struct {
	t     *testing.T
	begun time.Time
	dir   string

	mu    sync.Mutex
	lines []string
	// away is the error of a missing logind; delay is its longest delay, and reloads its delay after a reload.
	away      error
	delay     time.Duration
	reloads   time.Duration
	preparing bool
	goingDown bool
	events    chan logind.Event
	locks     int
	// pods are the remaining ones, and takes is the time that each needs to end; fails is the error of syncloop's calls.
	pods     []*v1.Pod
	takes    map[string]time.Duration
	fails    error
	statuses time.Duration
	waiting  string
	// downAtFirst is the state that a nodestatus reports before it has reached logind.
	downAtFirst bool
}

func newMachine(t *testing.T) *machine {
	return &machine{
		t:      t,
		begun:  time.Now(),
		dir:    t.TempDir(),
		delay:  time.Hour,
		events: make(chan logind.Event, 4),
		takes:  map[string]time.Duration{},
	}
}

func (m *machine) note(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, fmt.Sprintf("%ds ", int(time.Since(m.begun).Seconds()))+fmt.Sprintf(format, args...))
}

// did returns and clears the recorded calls.
func (m *machine) did() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	lines := strings.Join(m.lines, "; ")
	m.lines = nil
	return lines
}

func (m *machine) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// shutDown does what logind does at the request of a shutdown.
func (m *machine) shutDown() {
	m.set(func() { m.preparing = true })
	m.events <- logind.Preparing
}

// The connection to logind.

func (m *machine) connect(context.Context) (shutdown.Logind, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return connection{m}, m.away
}

type connection struct{ m *machine }

func (c connection) Next(ctx context.Context) (logind.Event, error) {
	c.m.mu.Lock()
	events := c.m.events
	c.m.mu.Unlock()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case event, open := <-events:
		if !open {
			return 0, logind.ErrClosed
		}
		return event, nil
	}
}

func (c connection) InhibitDelay(context.Context) (time.Duration, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.m.delay, nil
}

func (c connection) PreparingForShutdown(context.Context) (bool, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return c.m.preparing, nil
}

func (c connection) Inhibit(context.Context, string, string) (io.Closer, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.goingDown {
		return nil, logind.ErrGoingDown
	}
	c.m.locks++
	return lock(c), nil
}

func (c connection) Reload(context.Context) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.delay = c.m.reloads
	return nil
}

func (c connection) Close() error { return nil }

type lock struct{ m *machine }

func (l lock) Close() error {
	l.m.mu.Lock()
	l.m.locks--
	last := l.m.locks == 0
	l.m.mu.Unlock()
	if last {
		l.m.note("logind waits no longer")
	}
	return nil
}

// The calls of syncloop.

// never is the time of a pod that cannot be ended.
const never = time.Hour

func (m *machine) Pods(context.Context) ([]*v1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods), m.fails
}

func (m *machine) End(ctx context.Context, pods []shutdown.End) error {
	var names []string
	var longest time.Duration
	for _, end := range pods {
		names = append(names, fmt.Sprint(end.Pod.Name, ":", end.GraceSeconds))
		takes := m.takes[end.Pod.Name]
		if takes != never {
			takes = min(takes, time.Duration(end.GraceSeconds)*time.Second)
		}
		longest = max(longest, takes)
	}
	m.note("end %s", strings.Join(names, " "))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(longest):
	}
	m.set(func() {
		m.pods = slices.DeleteFunc(m.pods, func(p *v1.Pod) bool {
			return slices.ContainsFunc(pods, func(end shutdown.End) bool { return end.Pod.Name == p.Name })
		})
	})
	return nil
}

func (m *machine) AwaitStatuses(ctx context.Context) error {
	m.note("statuses")
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(m.statuses):
		return nil
	}
}

// start starts a nodestatus. The returned function kills it, which releases its lock.
func (m *machine) start() (manager *shutdown.Manager, registry *prometheus.Registry, kill func()) {
	registry = prometheus.NewRegistry()
	manager = shutdown.New(shutdown.Config{
		Periods: shutdown.Periods{
			period(0, 20),
			period(critical, 10),
		},
		Connect:  m.connect,
		DropIn:   filepath.Join(m.dir, "conf.d", "q.conf"),
		Engine:   m,
		StateDir: m.dir,
		Boot:     "this one",
		BootTime: func() time.Duration { return time.Since(m.begun) },
		Changed:  func(message string) { m.note("%s", message) },
		Waiting:  func(reason string) { m.set(func() { m.waiting = reason }) },
		Logger:   slog.New(slog.DiscardHandler),
		Metrics:  shutdown.NewMetrics(registry),
	})
	m.downAtFirst = manager.ShuttingDown()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	kill = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			m.t.Errorf("Run returned %v, want %v", err, context.Canceled)
		}
	})
	synctest.Wait()
	return manager, registry, kill
}

func (m *machine) wants(what, want string) {
	m.t.Helper()
	if got := m.did(); got != want {
		m.t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// pass advances the clock and waits for all due work.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func value(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

const (
	begins    = "Shutdown manager detected shutdown event"
	calledOff = "Shutdown manager detected shutdown cancellation"
	startTime = "kubelet_graceful_shutdown_start_time_seconds"
	endTime   = "kubelet_graceful_shutdown_end_time_seconds"
	waits     = "quartet_nodestatus_shutdown_lock"
)

func TestPodsEndInGroupsAndThenTheMachineGoesDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.pods = []*v1.Pod{
			pod("web", nil, ptr.To[int64](30)),
			pod("quick", nil, ptr.To[int64](2)),
			pod("dns", ptr.To[int32](critical), ptr.To[int64](30)),
		}
		m.takes = map[string]time.Duration{"web": 5 * time.Second, "dns": 3 * time.Second}
		m.statuses = time.Second
		manager, registry, kill := m.start()
		defer kill()
		m.wants("before", "")
		if manager.ShuttingDown() || value(t, registry, waits) != 1 || m.waiting != "" {
			t.Errorf("before: shutting down %v, waits %v, %q", manager.ShuttingDown(), value(t, registry, waits), m.waiting)
		}
		m.shutDown()
		pass(time.Minute)
		m.wants("the shutdown", "0s "+begins+"; 0s end web:20 quick:2; 5s end dns:10; 8s statuses; 9s logind waits no longer")
		if !manager.ShuttingDown() {
			t.Error("new pods would be let in while the machine goes down")
		}
		began, ended := value(t, registry, startTime), value(t, registry, endTime)
		if began != float64(m.begun.Unix()) || ended-began != 9 || value(t, registry, waits) != 0 {
			t.Errorf("began %v, ended %v, waits %v", began, ended, value(t, registry, waits))
		}
		// The next boot knows the time of the shutdown.
		kill()
		m.set(func() { m.preparing = false })
		_, registry, killed := m.start()
		defer killed()
		if value(t, registry, startTime) != began || value(t, registry, endTime) != ended {
			t.Error("the times are forgotten")
		}
	})
}

func TestAPodThatDoesNotEndDelaysTheShutdownByTheTimeOfItsGroupOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.pods = []*v1.Pod{pod("web", nil, nil), pod("dns", ptr.To[int32](critical), nil)}
		m.fails, m.statuses = errors.New("syncloop is away"), time.Hour
		_, _, kill := m.start()
		defer kill()
		m.shutDown()
		pass(12 * time.Second)
		m.set(func() { m.fails, m.takes = nil, map[string]time.Duration{"web": never, "dns": never} })
		pass(time.Hour)
		m.wants(
			"the shutdown",
			"0s "+begins+"; 12s end web:7; 20s end web:10 dns:10; 30s statuses; 35s logind waits no longer",
		)
	})
}

func TestAShutdownThatIsCalledOffIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.pods, m.takes = []*v1.Pod{pod("web", nil, nil)}, map[string]time.Duration{"web": time.Minute}
		manager, _, kill := m.start()
		defer kill()
		m.shutDown()
		pass(3 * time.Second)
		m.set(func() { m.preparing = false })
		m.events <- logind.CalledOff
		synctest.Wait()
		m.wants("it is called off", "0s "+begins+"; 0s end web:20; 3s "+calledOff)
		if manager.ShuttingDown() || m.locks != 1 {
			t.Errorf("shutting down %v, %d locks", manager.ShuttingDown(), m.locks)
		}
		// The next shutdown has its full time, also in another process.
		kill()
		m.did()
		_, _, killed := m.start()
		defer killed()
		pass(7 * time.Second)
		m.shutDown()
		synctest.Wait()
		m.wants("the next one", "10s "+begins+"; 10s end web:20")
		if m.downAtFirst {
			t.Error("what was called off is over")
		}
	})
}

func TestAKillDoesNotBeginAShutdownAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		m.pods = []*v1.Pod{pod("web", nil, nil), pod("dns", ptr.To[int32](critical), nil)}
		m.takes = map[string]time.Duration{"web": never, "dns": never}
		_, _, kill := m.start()
		m.shutDown()
		pass(4 * time.Second)
		kill()
		m.wants("the first", "0s "+begins+"; 0s end web:20; 4s logind waits no longer")
		pass(2 * time.Second)
		_, _, kill = m.start()
		m.wants("the second has the rest", "6s "+begins+"; 6s end web:14")
		if !m.downAtFirst {
			t.Error("the Node would be ready, and pods let in, until logind has said that it is not so")
		}
		pass(17 * time.Second)
		kill()
		m.did()
		_, _, kill = m.start()
		m.wants("the third is in the next group", "23s "+begins+"; 23s end web:7 dns:7")
		pass(time.Minute)
		kill()
		m.did()
		// Everything is done: later requests do not wait.
		manager, _, kill := m.start()
		m.wants("the fourth", "83s "+begins+"; 83s logind waits no longer")
		if !manager.ShuttingDown() || m.locks != 0 {
			t.Errorf("shutting down %v, %d locks", manager.ShuttingDown(), m.locks)
		}
		kill()
		m.set(func() { m.preparing, m.goingDown = false, true })
		manager, _, kill = m.start()
		defer kill()
		if !manager.ShuttingDown() {
			t.Error("logind gives no lock any more, and pods would be let in")
		}
	})
}

func TestALogindThatIsStartedAgainIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		manager, registry, kill := m.start()
		defer kill()
		for range 3 {
			m.events <- logind.Restarted
			synctest.Wait()
		}
		if m.locks != 1 {
			t.Errorf("%d locks after three restarts, want one", m.locks)
		}
		// Without logind pods keep running, which is reported once with a fix.
		m.set(func() { m.away = errors.New("dial unix: no such file") })
		close(m.events)
		pass(time.Minute)
		if !strings.Contains(m.waiting, "no such file") || !strings.Contains(m.waiting, logind.SystemBus) ||
			manager.ShuttingDown() {
			t.Errorf("it says %q", m.waiting)
		}
		m.set(func() { m.away, m.events = nil, make(chan logind.Event, 1) })
		pass(time.Minute)
		if m.waiting != "" || m.locks != 1 || value(t, registry, waits) != 1 {
			t.Errorf("it is back: %q, %d locks, want an empty text, 1 and value 1", m.waiting, m.locks)
		}
	})
}

func TestLogindsDelayIsExtended(t *testing.T) {
	for name, test := range map[string]struct {
		reloads  time.Duration
		readOnly bool
		want     []string
	}{
		"it reads the file":          {reloads: 30 * time.Second},
		"another file wins":          {reloads: 5 * time.Second, want: []string{"5s only", "30s", "InhibitDelayMaxSec=30", "q.conf", "the file is there"}},
		"the file cannot be written": {readOnly: true, want: []string{"5s only", "30s", "InhibitDelayMaxSec=30", "q.conf", "systemctl kill --signal=HUP systemd-logind", "not a directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t)
				m.delay, m.reloads = 5*time.Second, test.reloads
				if test.readOnly {
					if err := os.WriteFile(filepath.Join(m.dir, "conf.d"), nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				_, _, kill := m.start()
				defer kill()
				pass(10 * time.Second)
				for _, part := range test.want {
					if !strings.Contains(m.waiting, part) {
						t.Errorf("it says %q, want %q in it", m.waiting, part)
					}
				}
				if len(test.want) == 0 && m.waiting != "" {
					t.Errorf("it says %q", m.waiting)
				}
				if m.locks != 1 {
					t.Errorf("%d locks; what time there is counts, want 1", m.locks)
				}
				if data, err := os.ReadFile(filepath.Join(m.dir, "conf.d", "q.conf")); !test.readOnly &&
					(err != nil || !strings.Contains(string(data), "[Login]\nInhibitDelayMaxSec=30\n")) {
					t.Errorf("the file has %q: %v", data, err)
				}
				// A fix of the configuration is detected.
				m.set(func() { m.delay = time.Minute })
				pass(2 * time.Minute)
				if m.waiting != "" {
					t.Errorf("it still says %q", m.waiting)
				}
			})
		})
	}
}
