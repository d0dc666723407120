package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/journal"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a running Book in a separate directory.
type rig struct {
	*journal.Book
	t        *testing.T
	path     string
	log      *logbuffer.Buffer
	clock    *clocktesting.FakeClock
	registry *prometheus.Registry
	stop     func()
}

// open opens the book in a path as a new process does. Its stream has the token begin before its first event.
func open(t *testing.T, path, begin string) *rig {
	return openFile(t, path, begin, journal.OnDisk(path))
}

func openFile(t *testing.T, path, begin string, file journal.File) *rig {
	t.Helper()
	r := &rig{
		t:        t,
		path:     path,
		log:      &logbuffer.Buffer{},
		clock:    clocktesting.NewFakeClock(time.Now()),
		registry: prometheus.NewRegistry(),
	}
	r.Book = journal.Open(journal.Config{
		File:     file,
		Path:     path,
		Observer: observer,
		Clock:    r.clock,
		Logger:   slog.New(slog.NewTextHandler(r.log, nil)),
		Metrics:  journal.NewMetrics(r.registry),
	})
	r.Begin([]byte(begin))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *rig) has() string {
	data, err := os.ReadFile(r.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	return string(data)
}

// seen returns a pod with one container in a state, and one that is only created.
func seen(uid string, state lifecyclev1.ContainerState) record.Pod {
	pod, _ := record.Pod{}.Observe(&lifecyclev1.PodStatus{
		Uid: uid, Name: "web", Namespace: "default", Ips: []string{"10.88.0.5"},
		Sandboxes: []*lifecyclev1.Sandbox{{
			Id: "s-" + uid, State: lifecyclev1.SandboxState_SANDBOX_STATE_READY, CreatedAt: timestamppb.New(time.Unix(7, 8)),
			Labels: map[string]string{"left": "out"},
		}},
		Containers: []*lifecyclev1.Container{
			{
				Id:          "c-" + uid,
				Name:        "app",
				State:       state,
				ExitCode:    3,
				Annotations: map[string]string{telemetry.AnnotationTraceparent: "00-a", "left": "out"},
			},
			{Id: "d-" + uid, Name: "next", State: lifecyclev1.ContainerState_CONTAINER_STATE_CREATED},
		},
	})
	return pod
}

func gone() record.Pod {
	pod, _ := record.Pod{}.Observe(&lifecyclev1.PodStatus{Uid: "any"})
	return pod
}

// observer is the observer of every book, if a test names no other.
const observer = "boot version"

const (
	running = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	exited  = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
)

func tokens(all [][]byte) []string {
	texts := make([]string, len(all))
	for i, token := range all {
		texts[i] = string(token)
	}
	return texts
}

func TestPublishedStatesAreKnownToTheNextProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), journal.FileName)
	first := open(t, path, "one/0")
	if _, known := first.Before(); known {
		t.Error("the first process knows what was told before it")
	}
	first.Note("a", seen("a", running), []byte("one/1"))
	first.Note("b", seen("b", running), []byte("one/2"))
	if first.has() != "" {
		t.Error("the file has some pods and not the others")
	}
	first.Complete()
	eventually.That(first.t, "the file is there", func() bool { return first.has() != "" })
	first.Note("a", seen("a", exited), []byte("one/3"))
	first.Note("b", gone(), []byte("one/4"))
	first.stop()

	second := open(t, path, "two/0")
	before, known := second.Before()
	want := map[string]record.Published{"a": seen("a", exited).Published()}
	if diff := cmp.Diff(want, before, protocmp.Transform()); diff != "" || !known {
		t.Errorf("the next process knows (-want +got):\n%s", diff)
	}
	if got := tokens(second.Continues()); !slices.Equal(got, []string{"one/4"}) {
		t.Errorf("it goes on from %q, want %q", got, []string{"one/4"})
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v (%v), want Perm 0o600", info.Mode(), err)
	}
}

func TestFollowersOfProcessesWithoutAnEventAreAllResumed(t *testing.T) {
	path := filepath.Join(t.TempDir(), journal.FileName)
	var want []string
	for run := range 20 {
		begin := fmt.Sprintf("run-%d/0", run)
		r := open(t, path, begin)
		if got := tokens(r.Continues()); !slices.Equal(got, want) {
			t.Errorf("run %d goes on from %q, want %q", run, got, want)
		}
		r.Complete()
		r.stop()
		want = append(want, begin)
		want = want[max(0, len(want)-16):]
	}
	r := open(t, path, "last/0")
	r.Note("a", seen("a", running), []byte("last/1"))
	r.stop()
	if got := tokens(open(t, path, "after/0").Continues()); !slices.Equal(got, []string{"last/1"}) {
		t.Errorf("after an event it goes on from %q", got)
	}
}

// TestATruncatedFileHasTheEventsPublishedBefore tests every place at which a kill or a crash may cut the file.
func TestATruncatedFileHasTheEventsPublishedBefore(t *testing.T) {
	file := &memory{}
	r := openFile(t, "memory", "one/0", file)
	r.Complete()
	eventually.That(r.t, "the first line is there", func() bool { return file.attempts() > 0 })
	first := file.largest
	r.Note("a", seen("a", running), []byte("one/1"))
	r.stop()
	whole := file.data
	for cut := first; cut < len(whole); cut++ {
		next := openFile(t, "memory", "two/0", &memory{data: whole[:cut:cut]})
		before, known := next.Before()
		if got := tokens(next.Continues()); !known || len(before) != 0 || !slices.Equal(got, []string{"one/0"}) {
			t.Fatalf("cut off after %d bytes it has %v and goes on from %q", cut, before, got)
		}
		next.stop()
	}
}

// line returns a line of the file with its checksum.
func line(json string) string {
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(json), crc32.MakeTable(crc32.Castagnoli)), json)
}

func TestAFileThatCannotBeUnderstoodIsRenamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), journal.FileName)
	r := open(t, path, "one/0")
	r.Complete()
	eventually.That(r.t, "the first line is there", func() bool { return r.has() != "" })
	r.Note("a", seen("a", running), []byte("one/1"))
	r.stop()
	whole := r.has()
	_, changes, _ := strings.Cut(whole, "\n")
	for name, data := range map[string]string{
		"emptied while it was written": changes,
		"empty":                        "",
		"other":                        "what is this\n",
		"cut off":                      whole[:10],
		"damaged":                      strings.Replace(whole, `"version":2`, `"version":1`, 1),
		"of a newer version":           line(`{"version":9,"tokens":["YQ=="]}`),
		"a pod without a UID":          line(`{"version":2,"tokens":["YQ=="],"pods":[{}]}`),
		"a pod of v0.1.0 without it":   line(`{"version":1,"tokens":["YQ=="],"pods":[{"status":{}}]}`),
		"a pod that is none":           line(`{"version":2,"tokens":["YQ=="],"pods":[{"state":"/w=="}]}`),
		"of no follower":               line(`{"version":2}`),
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		next := open(t, path, "two/0")
		if _, known := next.Before(); known || len(next.Continues()) != 0 {
			t.Errorf("%s: it is taken for what was told", name)
		}
		if !strings.Contains(next.log.String(), "level=WARN") || !strings.Contains(next.log.String(), path+".damaged") {
			t.Errorf("%s: the log does not say where the file is:\n%s", name, next.log)
		}
		if kept, err := os.ReadFile(path + ".damaged"); err != nil || string(kept) != data {
			t.Errorf("%s: what was put aside is %q (%v), want %q", name, kept, err, data)
		}
		next.stop()
	}
}

// TestAFileOfTheLastReleaseIsRead, and continued: v0.1.0 has the status of a pod as JSON, and no numbers of lines.
func TestAFileOfTheLastReleaseIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), journal.FileName)
	pods := func(uids ...string) string {
		var all []string
		for _, uid := range uids {
			all = append(all, fmt.Sprintf(`{"status":{"uid":%q,"name":"web","namespace":"default","ips":["10.88.0.5"],`+
				`"sandboxes":[{"id":"s-%[1]s","state":"SANDBOX_STATE_READY","createdAt":"1970-01-01T00:00:07.000000008Z"}],`+
				`"containers":[{"id":"c-%[1]s","name":"app","state":"CONTAINER_STATE_RUNNING","exitCode":3,`+
				`"annotations":{"quartet.dev/traceparent":"00-a"}},`+
				`{"id":"d-%[1]s","name":"next","state":"CONTAINER_STATE_CREATED"}]},`+
				`"phases":{"c-%[1]s":"started","d-%[1]s":"created"},"whole":%q}`, uid, observer))
		}
		return strings.Join(all, ",")
	}
	old := line(`{"version":1,"tokens":["b25lLzE="],"pods":[`+pods("a", "b")+`]}`) +
		line(`{"version":1,"tokens":["b25lLzI="],"gone":["b"]}`)
	if err := os.WriteFile(path, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	wantPods := func(r *rig, uids ...string) {
		t.Helper()
		want := map[string]record.Published{}
		for _, uid := range uids {
			want[uid] = seen(uid, running).Published()
		}
		before, known := r.Before()
		if diff := cmp.Diff(want, before, protocmp.Transform()); diff != "" || !known {
			t.Errorf("known is %v (-want +got):\n%s\n%s", known, diff, r.log)
		}
	}
	next := open(t, path, "two/0")
	wantPods(next, "a")
	next.Note("a", seen("a", running), []byte("two/1"))
	next.Note("c", seen("c", running), []byte("two/2"))
	next.Complete()
	next.stop()
	wantPods(open(t, path, "three/0"), "a", "c")
}

// memory is a File that can be full, and reports what was written to it.
type memory struct {
	mu      sync.Mutex
	data    []byte
	largest int
	full    bool
	tried   int
}

var errFull = errors.New("no space left on device")

func (m *memory) Read() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.data == nil {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(m.data), nil
}

func (m *memory) write(data []byte) error {
	m.tried++
	if m.full {
		return errFull
	}
	m.data = data
	m.largest = max(m.largest, len(data))
	return nil
}

func (m *memory) Replace(data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.write(bytes.Clone(data))
}

// Append writes only a part of data when there is no space for all of it, as a disk does.
func (m *memory) Append(data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full {
		m.data = append(m.data, data[:len(data)/2]...)
	}
	return m.write(slices.Concat(m.data, data))
}

func (m *memory) SetAside() (string, error) { return "aside", nil }
func (m *memory) Close() error              { return nil }

func (m *memory) set(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = full
}

func (m *memory) attempts() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tried
}

// has reports whether the last written data contain a token.
func (m *memory) has(token string) bool {
	data, err := m.Read()
	if err != nil {
		return false
	}
	again := &memory{data: data}
	book := journal.Open(
		journal.Config{File: again, Logger: slog.New(slog.DiscardHandler), Clock: clocktesting.NewFakeClock(time.Now())},
	)
	return slices.Contains(tokens(book.Continues()), token)
}

// TestTheFileIsBoundedByThePods, for any number of events.
func TestTheFileIsBoundedByThePods(t *testing.T) {
	file := &memory{}
	r := openFile(t, "memory", "one/0", file)
	r.Complete()
	eventually.That(r.t, "the first line is there", func() bool { return file.attempts() > 0 })
	for i := range 1000 {
		uid, before := fmt.Sprint("uid-", i%3), file.attempts()
		r.Note(uid, seen(uid, []lifecyclev1.ContainerState{running, exited}[i%2]), fmt.Appendf(nil, "one/%d", i+1))
		eventually.That(r.t, "each is written", func() bool { return file.attempts() > before })
	}
	r.stop()
	if file.largest < 100<<10 || file.largest > 300<<10 {
		t.Errorf("with three pods the file grew to %d bytes", file.largest)
	}
	if before, _ := openFile(t, "memory", "two/0", file).Before(); len(before) != 3 {
		t.Errorf("it has %d pods, want 3", len(before))
	}
}

// TestADiskThatIsFullIsReportedOnceAndRetried checks that an incomplete line does no harm.
func TestADiskThatIsFullIsReportedOnceAndRetried(t *testing.T) {
	file := &memory{}
	r := openFile(t, "memory", "one/0", file)
	r.Note("a", seen("a", running), []byte("one/1"))
	r.Complete()
	eventually.That(r.t, "the file is there", func() bool { return file.has("one/1") })
	file.set(true)
	for i := range 50 {
		r.Note("a", seen("a", []lifecyclev1.ContainerState{exited, running}[i%2]), fmt.Appendf(nil, "one/%d", i+2))
		eventually.That(r.t, "the first is tried", func() bool { return file.attempts() >= 2 })
	}
	eventually.That(r.t, "it waits", r.clock.HasWaiters)
	if !file.has("one/1") {
		t.Error("what was there before the disk was full is lost")
	}
	r.clock.Step(10 * time.Second)
	eventually.That(r.t, "it is tried again", func() bool { return file.attempts() == 3 })
	file.set(false)
	eventually.That(r.t, "it waits again", r.clock.HasWaiters)
	r.clock.Step(10 * time.Second)
	eventually.That(r.t, "all is written again", func() bool { return file.has("one/51") })
	r.stop()
	if log := r.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "no space left") ||
		strings.Count(log, "is written again") != 1 {
		t.Errorf("the log says\n%s\nwant %q once, with %q and %q once",
			log, "level=WARN", "no space left", "is written again")
	}
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(`
# HELP quartet_pleg_told_errors_total Failed writes of the journal.
# TYPE quartet_pleg_told_errors_total counter
quartet_pleg_told_errors_total 2
`), "quartet_pleg_told_errors_total"); err != nil {
		t.Error(err)
	}
}

func TestNoBookRemembersNothing(t *testing.T) {
	var book *journal.Book
	book.Begin(nil)
	book.Note("a", gone(), nil)
	book.Complete()
	if _, known := book.Before(); known || book.Continues() != nil || book.Run(t.Context()) != nil {
		t.Error("it does")
	}
}

// TestOnlyTheObserverOfAStateTakesItOver: another boot has other boot times, and another version may observe more.
func TestOnlyTheObserverOfAStateTakesItOver(t *testing.T) {
	file := &memory{}
	r := openFile(t, "memory", "one/0", file)
	r.Note("a", seen("a", running), []byte("one/1"))
	r.Complete()
	r.stop()
	for other, want := range map[string]bool{observer: true, "boot other": false, "": false} {
		book := journal.Open(journal.Config{
			File: &memory{data: file.data}, Observer: other, Logger: slog.New(slog.DiscardHandler),
			Clock: clocktesting.NewFakeClock(time.Now()),
		})
		before, known := book.Before()
		if !known || before["a"].Status == nil || before["a"].Whole != want {
			t.Errorf("observer %q knows the pod: %v, and takes it over: %v, want true and %v",
				other, before["a"].Status != nil, before["a"].Whole, want)
		}
	}
}
