package show

import (
	"errors"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// topExample has a node with a pleg that does not answer, a stream that is behind, and a worker that fails.
func topExample() topView {
	sample := func(at time.Time, cpu, changes float64) topSample {
		s := topSample{at: at}
		for _, service := range layout.Services() {
			s.processes = append(s.processes, topProcess{
				service: service, cpu: cpu, memory: 40 << 20, goroutines: 30, started: ago(time.Hour),
			})
			if service == layout.PLEG {
				s.processes[len(s.processes)-1] = topProcess{service: service, err: errors.New("connection refused")}
			}
		}
		s.streams = []topStream{
			{service: layout.ConfigMux, name: "pod_updates", subscribers: 1, lag: 1.5, behind: 7, changes: changes, begun: 3, resumed: 2},
		}
		s.followers = []topFollower{
			{service: layout.SyncLoop, name: "lifecycle_events", losses: 1, lastMessage: ago(12 * time.Second)},
			{service: layout.SyncLoop, name: "pod_updates", connected: true, lastMessage: ago(time.Second)},
		}
		s.workers = []*enginev1.Worker{
			{Namespace: "default", Name: "web", State: enginev1.WorkerState_WORKER_STATE_SYNCING, WaitsFor: "main: CrashLoopBackOff"},
			{
				Namespace: "default", Name: "db", State: enginev1.WorkerState_WORKER_STATE_SYNCING,
				LastError: "volume \"data\": not attached\nto this node", NextSyncAt: timestamppb.New(now.Add(10 * time.Second)),
			},
			{Namespace: "default", Name: "fine", State: enginev1.WorkerState_WORKER_STATE_SYNCING},
		}
		s.pods = []podView{{pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
			Status:     v1.PodStatus{Phase: v1.PodRunning},
		}}}
		return s
	}
	const seconds = 2
	view := topView{
		before: sample(ago(seconds*time.Second), 10, 100), now: sample(now, 10.5, 103), interval: seconds * time.Second,
	}
	for i, reason := range []string{"Scheduled", "Pulled", "Started", "BackOff"} {
		view.events = append(view.events, happening{
			Time: ago(time.Duration(10-i) * time.Second), Kind: kindPod, Type: v1.EventTypeNormal,
			Namespace: "default", Pod: "web", Reason: reason, Message: "of \x1b[31mmain " + strings.Repeat("é", 100),
		})
	}
	return view
}

func topAt(width, height int) topScreen {
	view := topExample()
	m := topScreen{
		view: view, sample: func() topSample { return view.now },
		events: func() ([]happening, []string) { return view.events, view.missing },
	}
	next, _ := m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return next.(topScreen) //nolint:forcetypeassert // it is the model of the test
}

// press sends keys.
func (m topScreen) press(keys ...string) topScreen {
	types := map[string]tea.KeyType{
		"tab": tea.KeyTab, "up": tea.KeyUp, "down": tea.KeyDown, "pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown,
		"home": tea.KeyHome, "end": tea.KeyEnd, "shift+tab": tea.KeyShiftTab, "left": tea.KeyLeft, "right": tea.KeyRight,
	}
	for _, key := range keys {
		msg := tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(key)}
		if t, special := types[key]; special {
			msg = tea.KeyMsg{Type: t}
		}
		next, _ := m.Update(msg)
		m = next.(topScreen) //nolint:forcetypeassert // it is the model of the test
	}
	return m
}

// TestTheOverviewNamesWhatIsWrong has everything that an operator looks for on 24 lines.
func TestTheOverviewNamesWhatIsWrong(t *testing.T) {
	screen := topAt(80, 24).View()
	for _, want := range []string{
		"1 pods, 0 ready, 1 failing", "[1 overview]",
		"configmux   25.0 %", "40Mi", "pleg        <none>", "does not answer: connection refused",
		"1 of 2 not connected, 1 lost, 2 resumed; pod_updates is 1.5s behind",
		"in 10s", `volume "data": not attached to this node`, "main: CrashLoopBackOff", "BackOff", "q end",
	} {
		if !strings.Contains(screen, want) {
			t.Errorf("the overview lacks %q:\n%s", want, screen)
		}
	}
	if strings.Index(screen, "default/db") > strings.Index(screen, "main: CrashLoopBackOff") {
		t.Errorf("a worker that fails comes after one that waits:\n%s", screen)
	}
	if strings.ContainsRune(screen, '\x1b') {
		t.Error("a message of an event reaches the terminal with its control characters")
	}
}

func TestEachPageIsAKeyAway(t *testing.T) {
	for key, want := range map[string]string{
		"2": "OVERFLOW", "3": "LAST ERROR", "4": "RESTARTS", "5": "Scheduled", "tab": "OVERFLOW", "left": "Scheduled",
	} {
		if screen := topAt(200, 24).press(key).View(); !strings.Contains(screen, want) {
			t.Errorf("the page of %q lacks %q:\n%s", key, want, screen)
		}
	}
	streams := topAt(80, 24).press("2").View()
	if !strings.Contains(streams, "1.5s, 7  1.5    3      2") {
		t.Errorf("the stream has no lag of 1.5s, 7 messages and 1.5 changes a second:\n%s", streams)
	}
}

func TestAPausedScreenStays(t *testing.T) {
	m := topAt(80, 24).press("p")
	next, cmd := m.Update(sampled{topSample{at: now.Add(time.Hour)}})
	if after := next.View(); after != m.View() || !strings.Contains(after, "PAUSED") {
		t.Errorf("the screen has changed to\n%s", after)
	}
	if cmd == nil {
		t.Error("no further sample is due")
	}
	m = next.(topScreen).press("p") //nolint:forcetypeassert // it is the model of the test
	next, _ = m.Update(sampled{topSample{at: now.Add(time.Hour)}})
	if !strings.Contains(next.View(), "13:00:00") {
		t.Errorf("it does not go on:\n%s", next.View())
	}
}

func TestTheLastLinesCanBeReached(t *testing.T) {
	m := topAt(80, 8).press("end")
	lines := m.view.lines(topOverview)
	if last := lines[len(lines)-1][:20]; !strings.Contains(m.View(), last) {
		t.Errorf("the end lacks %q:\n%s", last, m.View())
	}
	if top := m.press("home").View(); !strings.Contains(top, "PROCESS") || !strings.Contains(top, "more lines") {
		t.Errorf("the beginning is\n%s", top)
	}
}

// TestTheScreenFitsAnyTerminal presses any keys on terminals of any size.
func TestTheScreenFitsAnyTerminal(t *testing.T) {
	keys := []string{
		"1", "2", "3", "4", "5", "tab", "shift+tab", "left", "right", "up", "down", "pgup", "pgdown", "home", "end", "p", "x",
	}
	rapid.Check(t, func(t *rapid.T) {
		width, height := rapid.IntRange(1, 200).Draw(t, "width"), rapid.IntRange(1, 60).Draw(t, "height")
		m := topAt(width, height).press(rapid.SliceOfN(rapid.SampledFrom(keys), 0, 20).Draw(t, "keys")...)
		lines := strings.Split(m.View(), "\n")
		if len(lines) > height {
			t.Errorf("%d lines on a terminal of %d", len(lines), height)
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > width {
				t.Errorf("%d columns on a terminal of %d: %q", n, width, line)
			}
		}
	})
}

func TestAnotherProcessHasNoProcessorTimeYet(t *testing.T) {
	view := topExample()
	view.now.processes[0].started = now
	if got := view.now.cpuPercent(view.before, 0); got >= 0 {
		t.Errorf("a process that has just started has %.1f %%", got)
	}
}

// refusing is a syncloop whose events this user may not see.
type refusing struct {
	enginev1.UnimplementedEngineServiceServer
}

func (refusing) WatchPodEvents(
	*enginev1.WatchPodEventsRequest, grpc.ServerStreamingServer[enginev1.WatchPodEventsResponse],
) error {
	return status.Error(codes.PermissionDenied, "user 7 lacks the role observe: add it to --observe-uids")
}

// TestEventsThatAreRefusedAreNamed follows the events of a syncloop that refuses them, and shows what to do.
func TestEventsThatAreRefusedAreNamed(t *testing.T) {
	n := newNode(t)
	n.serveAs(layout.SyncLoop, func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, refusing{}) })
	a := &querier{clock: n.clock, node: target.Node{StateDir: n.stateDir}}
	events := &topEventLog{}
	if err := a.followTopEvents(t.Context(), layout.SyncLoop, events); err != nil {
		t.Fatal(err)
	}
	m := topAt(120, 24)
	m.events = events.all
	next, _ := m.Update(sampled{m.view.now})
	const want = "syncloop refuses the stream of events: user 7 lacks the role observe: add it to --observe-uids"
	for _, page := range []string{"1", "5"} {
		if screen := next.(topScreen).press(page).View(); !strings.Contains(screen, want) { //nolint:forcetypeassert // as above
			t.Errorf("page %s lacks %q:\n%s", page, want, screen)
		}
	}
}

// TestFiguresOfAnotherMachineAreNotAvailable names what is missing, and where it is, on each page that lacks it.
func TestFiguresOfAnotherMachineAreNotAvailable(t *testing.T) {
	m := topAt(120, 24)
	for i := range m.view.now.processes {
		p := &m.view.now.processes[i]
		*p = topProcess{service: p.service, err: errMetricsElsewhere}
	}
	m.view.now.streams, m.view.now.followers = nil, nil
	const why = "not available: metrics are read on its machine: run quartet top there"
	for page, want := range map[string]string{"1": "pleg        <none>  <none>  <none>      " + why, "2": "No streams of pleg: " + why} {
		if screen := m.press(page).View(); !strings.Contains(screen, want) || strings.Contains(screen, "does not answer") {
			t.Errorf("page %s lacks %q:\n%s", page, want, screen)
		}
	}
	if screen := m.View(); !strings.Contains(screen, "Streams: not known, see the processes") {
		t.Errorf("the overview counts streams that are not known:\n%s", screen)
	}
}
