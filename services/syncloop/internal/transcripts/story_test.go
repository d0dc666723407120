package transcripts

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/mount-utils"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the transcripts anew")

// lane orders the lines of the same instant by cause and effect. Within a lane their order is kept.
type lane string

const (
	laneConfig lane = "1"
	lanePLEG   lane = "2"
	laneLoop   lane = "3"
	laneWork   lane = "4"
	laneStatus lane = "5"
)

// workOf returns the lane of a pod's worker and of the calls that it makes.
func workOf[UID ~string](uid UID) lane { return laneWork + lane(uid) }

// whoWidth is the width of the column with the names.
const whoWidth = 9

// story is a node with its events, and the transcript of them.
type story struct {
	t       *testing.T
	begun   time.Time
	machine *machine
	pleg    *pleg
	config  *stream.Level[*loop.Desired]
	nodes   *stream.Level[*nodev1.Node]
	// stateDir survives syncloop, as everything above.
	stateDir string
	// syncloop is nil while it does not run.
	syncloop *syncloop
	reported map[types.UID]string

	mu    sync.Mutex
	lines []line
	// answers has the containers' answers to probes by kind; the default is success. answered has the last written answer
	// by container and kind.
	answers, answered map[string]string
	text              strings.Builder
}

type line struct {
	at   time.Duration
	lane lane
	text string
}

// tell plays a story and compares its transcript with its file in testdata.
func writeStory(t *testing.T, file, title string, play func(*story)) {
	t.Helper()
	fake := fakecri.New(t) // its socket is not used
	fake.AddImage("web:1", 1)
	fake.AddImage("web:2", 1)
	dir := t.TempDir()
	var told string
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		s := &story{
			t: t, begun: time.Now(), stateDir: dir, reported: map[types.UID]string{},
			answers: map[string]string{}, answered: map[string]string{},
			config: stream.NewLevel[*loop.Desired](stream.Config{}), nodes: stream.NewLevel[*nodev1.Node](stream.Config{}),
		}
		s.machine = &machine{story: s, fake: fake, changed: make(chan struct{}, 1), mounted: mount.NewFakeMounter(nil)}
		s.pleg = &pleg{
			m: s.machine, events: stream.NewEdge[*lifecyclev1.Event](stream.Config{}),
			record: map[types.UID]*lifecyclev1.PodStatus{},
		}
		var watching sync.WaitGroup
		watching.Go(func() { s.pleg.watch(ctx) })
		s.text.WriteString("# " + title + "\n")
		play(s)
		s.settle()
		if s.syncloop != nil {
			s.syncloop.kill()
		}
		end()
		watching.Wait()
		s.config.Close()
		s.nodes.Close()
		s.pleg.events.Close()
		told = s.text.String()
	})
	path := filepath.Join("testdata", file+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(told), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(told, "\n")); diff != "" {
		t.Errorf("%s tells another story (-file +now); if that is how it should go, run the test with -update:\n%s", path, diff)
	}
}

// sinceBoot returns the time of observations.
func (s *story) sinceBoot() time.Duration { return time.Hour + time.Since(s.begun) }

// line writes a line with its author and text.
func (s *story) line(in lane, actor, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line{time.Since(s.begun), in, fmt.Sprintf("%-*s %s", whoWidth, actor, what)})
}

// settle waits until nothing is left to do, and then writes the changed statuses.
func (s *story) settle() {
	synctest.Wait()
	if s.syncloop != nil {
		s.writeStatuses()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.lane, b.lane))
	})
	for _, l := range s.lines {
		fmt.Fprintf(&s.text, "%02d:%06.3f  %s\n", int(l.at.Minutes()), (l.at % time.Minute).Seconds(), l.text)
	}
	s.lines = nil
}

// note writes a remark for the reader.
func (s *story) note(text string) {
	s.settle()
	s.text.WriteString("\n# " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n# ") + "\n")
}

// pass lets time pass.
func (s *story) pass(d time.Duration) {
	s.until(d, func() bool { return false })
}

// until lets time pass until a condition is true, at most for d.
func (s *story) until(d time.Duration, holds func() bool) {
	over := time.After(d)
	for {
		s.settle()
		if holds() {
			return
		}
		var changed <-chan struct{}
		if s.syncloop != nil {
			changed = s.syncloop.changed
		}
		select {
		case <-over:
			s.settle()
			return
		case <-changed:
		}
	}
}

// ready lets time pass until a pod is Ready. The test fails if that takes more than a minute.
func (s *story) ready(uid types.UID) {
	s.t.Helper()
	s.until(time.Minute, func() bool { return s.isReady(uid) })
	if !s.isReady(uid) {
		s.t.Fatalf("%s does not get ready; told so far:\n%s", uid, s.text.String())
	}
}

func (s *story) isReady(uid types.UID) bool { return strings.Contains(s.reported[uid], ", ready") }

// source makes configmux report that a source is ready or not.
func (s *story) source(name string, ready bool) {
	what := "has not been read yet"
	if ready {
		what = "has been read"
	}
	s.line(laneConfig, "configmux", fmt.Sprintf("source %s %s", name, what))
	s.config.Put("source/"+name, &loop.Desired{Source: name, Ready: ready})
}

// add makes configmux send an added or changed pod.
func (s *story) add(op configv1.Op, pod *v1.Pod) {
	name := strings.TrimPrefix(op.String(), "OP_")
	text := fmt.Sprintf("%s pod %s, UID %s, image %s", name, pod.Name, pod.UID, pod.Spec.Containers[0].Image)
	if pod.DeletionGracePeriodSeconds != nil {
		text = fmt.Sprintf("%s pod %s, UID %s: it has %d s to end", name, pod.Name, pod.UID, *pod.DeletionGracePeriodSeconds)
	}
	s.line(laneConfig, "configmux", text)
	s.config.Put(string(pod.UID), &loop.Desired{Pod: pod, Source: "file"})
}

// remove makes configmux send that no source names a pod any more.
func (s *story) remove(pod *v1.Pod) {
	s.line(laneConfig, "configmux", fmt.Sprintf("REMOVE pod %s, UID %s", pod.Name, pod.UID))
	s.config.Delete(string(pod.UID))
}

// exit ends the newest container of a pod.
func (s *story) exit(pod *v1.Pod, code int32) {
	s.t.Helper()
	containers := s.machine.fake.Containers()
	for _, c := range slices.Backward(containers) {
		if c.PodUID == string(pod.UID) {
			_, name := s.machine.container(c.ID)
			s.line(workOf(pod.UID), "runtime", fmt.Sprintf("%s ends by itself with exit code %d", name, code))
			s.machine.fake.Exit(c.ID, code)
			s.machine.hint()
			s.until(time.Second, func() bool { return !s.isReady(pod.UID) })
			return
		}
	}
	s.t.Fatalf("%s has no container", pod.Name)
}

// evict calls syncloop to evict a pod.
func (s *story) evict(uid types.UID, reason, message string, grace int64) {
	s.t.Helper()
	s.line(laneConfig, "nodestatus", fmt.Sprintf("EvictPod %s, with %d s to end", uid, grace))
	if err := s.syncloop.evicter.Evict(s.t.Context(), uid, podstore.Eviction{Reason: reason, Message: message},
		grace); err != nil {
		s.t.Fatal(err)
	}
}

// node makes nodestatus send a Node with the given allocatable CPUs.
func (s *story) node(cpus string) {
	s.t.Helper()
	node := v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status: v1.NodeStatus{
			Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus), v1.ResourcePods: resource.MustParse("110")},
		},
	}
	data, err := node.Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	s.line(laneConfig, "nodestatus", fmt.Sprintf("the node has %s CPUs for pods", cpus))
	s.nodes.Put("node", &nodev1.Node{Node: data})
}

// away stops the runtime, or starts it again.
func (s *story) away(away bool) {
	s.machine.away.Store(away)
	if away {
		s.line(lanePLEG, "pleg", "is not healthy: the container runtime does not answer")
		s.pleg.setUnwell("the container runtime does not answer")
		return
	}
	s.line(lanePLEG, "pleg", "is healthy")
	s.pleg.setUnwell("")
	s.machine.hint()
}

// network makes the network of pods unready for a reason, or ready if it is empty.
func (s *story) network(reason string) {
	text := "the network of pods is ready"
	if reason != "" {
		text = "the network of pods is not ready: " + reason
	}
	s.line(laneConfig, "runtime", text)
	s.pleg.setNetwork(reason)
}

// start starts syncloop.
func (s *story) start() {
	s.t.Helper()
	var err error
	s.line(laneConfig, "syncloop", "starts")
	if s.syncloop, err = newSyncloop(s); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends syncloop without warning.
func (s *story) kill() {
	s.settle()
	s.line(laneWork, "syncloop", "is killed")
	s.syncloop.kill()
	s.syncloop, s.reported = nil, map[types.UID]string{}
	s.settle()
}

// logged writes the log of a process as lines of the story.
type logged struct {
	slog.Handler
	story *story
	lane  lane
	actor string
	ctx   context.Context //nolint:containedctx // it ends with the process whose log this is
}

// Enabled implements slog.Handler.
func (l logged) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle implements slog.Handler. It writes a record as a line of the story.
func (l logged) Handle(_ context.Context, r slog.Record) error {
	if l.ctx.Err() != nil {
		return nil
	}
	in := l.lane
	var words []string
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		// the UID of the pod and the name of the container are clearer in a story
		case telemetry.KeyPod, telemetry.KeyContainerID:
		case telemetry.KeyPodUID:
			words = slices.Insert(words, 0, a.Value.String())
			if in == laneWork {
				in = workOf(a.Value.String())
			}
		default:
			words = append(words, fmt.Sprintf("%s=%v", a.Key, a.Value))
		}
		return true
	})
	text := r.Message
	if len(words) > 0 {
		text += ": " + strings.Join(words, ", ")
	}
	l.story.line(in, l.actor, text)
	return nil
}

var errEnded = errors.New("the loop ended by itself")
