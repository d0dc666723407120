package prober_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a manager in a synctest bubble. The test answers its calls.
type rig struct {
	t       *testing.T
	dir     string
	begun   time.Time
	log     bytes.Buffer
	manager *prober.Manager
	kill    func()

	// unkept is true if the book cannot be written.
	unkept bool

	mu sync.Mutex
	// answers has the answers from now on, by "container kind"; the default is success.
	answers map[string]func(context.Context) probecalls.Answer
	calls   []string
	changes []string
	forgot  []string
	// calling has the probes whose call is in progress, and broken the violated rules.
	calling map[string]bool
	broken  []string
	// may has the kinds of probes that may be called now; nil allows all.
	may map[string]bool
}

// breaks records the violation of a rule.
func (r *rig) breaks(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, fmt.Sprintf("after %v: ", time.Since(r.begun))+fmt.Sprintf(format, args...))
}

// play runs a test in a synctest bubble.
func play(t *testing.T, test func(*rig)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, dir: dir, begun: time.Now(), answers: map[string]func(context.Context) probecalls.Answer{}}
		r.start()
		test(r)
		r.kill()
		for _, rule := range r.broken {
			t.Errorf("broken rule: %v", rule)
		}
	})
}

// start starts a manager with the same directory, as a restart of the process does.
func (r *rig) start() {
	r.t.Helper()
	logger := slog.New(slog.NewTextHandler(&r.log, nil))
	book := prober.OpenBook(r.dir, logger)
	r.manager = prober.New(prober.Config{
		Probe: r.probe, Forget: r.forget, Book: book, Clock: clock.RealClock{}, Tracer: telemetry.Off(), Logger: logger,
		Spread: func() float64 { return 0.5 },
	})
	ctx, end := context.WithCancel(r.t.Context())
	var running sync.WaitGroup
	manager := r.manager
	running.Go(func() {
		if err := manager.Run(ctx); !errors.Is(err, context.Canceled) {
			r.t.Errorf("the manager ended with %v, want %v", err, context.Canceled)
		}
	})
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case c := <-manager.Changes():
				if !r.unkept && !strings.Contains(r.files(), c.ContainerID) {
					r.t.Errorf("a result of %s is told, and is not on disk", c.ContainerID)
				}
				r.note(&r.changes, fmt.Sprintf("%s %s %s", c.ContainerID, strings.ToLower(string(c.Kind)), map[decide.ProbeResult]string{
					decide.Success: "success", decide.Failure: "failure",
				}[c.Result]))
			}
		}
	})
	r.kill = func() {
		end()
		running.Wait()
	}
}

func (r *rig) probe(ctx context.Context, t probecalls.Target) probecalls.Answer {
	name := t.Container.Name + " " + strings.ToLower(string(t.Kind))
	r.note(&r.calls, name)
	defer r.enter(t)()
	r.mu.Lock()
	answer := r.answers[name]
	r.mu.Unlock()
	if answer == nil {
		return probecalls.Answer{Outcome: probecalls.Success}
	}
	return answer(ctx)
}

// enter records the start of a call, checks that it is allowed, and returns a function that records its end.
func (r *rig) enter(t probecalls.Target) (leave func()) {
	kind, key := strings.ToLower(string(t.Kind)), t.ContainerID+" "+string(t.Kind)
	r.mu.Lock()
	again, may := r.calling[key], r.may == nil || r.may[kind]
	if r.calling == nil {
		r.calling = map[string]bool{}
	}
	r.calling[key] = true
	r.mu.Unlock()
	started := r.manager.Startup(t.ContainerID)
	switch {
	case again:
		r.breaks("%s is asked while it is being asked", key)
	case !may:
		r.breaks("%s is asked, and the container does not run, or its pod ends", key)
	case t.Kind == probecalls.Startup && started != decide.Unknown:
		r.breaks("%s is asked once more", key)
	case t.Kind != probecalls.Startup && t.Container.StartupProbe != nil && started != decide.Success:
		r.breaks("%s is asked before the container has started", key)
	case t.Kind == probecalls.Liveness && r.manager.Liveness(t.ContainerID) == decide.Failure:
		r.breaks("%s is asked after it has failed", key)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calling, key)
	}
}

func (r *rig) forget(t probecalls.Target) {
	r.note(&r.forgot, t.Container.Name+" "+strings.ToLower(string(t.Kind)))
}

// note adds a line with the seconds since the creation of the rig.
func (r *rig) note(to *[]string, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*to = append(*to, fmt.Sprintf("%v %s", time.Since(r.begun).Seconds(), text))
}

// answer sets the answer of a probe from now on.
func (r *rig) answer(probe string, answer func(context.Context) probecalls.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[probe] = answer
}

func fails(context.Context) probecalls.Answer {
	return probecalls.Answer{Outcome: probecalls.Failure, Output: "no"}
}

// hangs answers when the call is canceled.
func hangs(ctx context.Context) probecalls.Answer {
	<-ctx.Done()
	return probecalls.Answer{Err: ctx.Err()}
}

// pass lets time pass, and then waits until nothing is left to do.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// took returns the recorded lines and drops them. Their order is not defined within an instant, so they are sorted.
func (r *rig) took(from *[]string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := *from
	*from = nil
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func (r *rig) expect(what string, from *[]string, want string) {
	r.t.Helper()
	if got := r.took(from); got != want {
		r.t.Errorf("%s\ngot  %s\nwant %s", what, got, want)
	}
}

// files returns the names and contents of the book's files.
func (r *rig) files() string {
	r.t.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being replaced
		}
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, e.Name()+" "+string(data))
	}
	return strings.Join(all, "\n")
}

// observe passes a pod to the manager. Its containers were started now.
func (r *rig) observe(pod *v1.Pod, words string) *lifecyclev1.PodStatus {
	return r.observeStarted(pod, words, time.Now())
}

func (r *rig) observeStarted(pod *v1.Pod, words string, started time.Time) *lifecyclev1.PodStatus {
	return r.observeEnding(pod, words, started, false)
}

func (r *rig) observeEnding(pod *v1.Pod, words string, started time.Time, ending bool) *lifecyclev1.PodStatus {
	status := podviewtest.Status(pod, words)
	for _, c := range status.GetContainers() {
		c.StartedAt = timestamppb.New(started)
	}
	r.manager.Observe(pod, status, "10.0.0.9", ending)
	return status
}

// every returns a probe with a period of one second and thresholds of one.
func every() *v1.Probe {
	return &v1.Probe{PeriodSeconds: 1, SuccessThreshold: 1, FailureThreshold: 1, TimeoutSeconds: 1}
}
