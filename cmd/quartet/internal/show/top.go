package show

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
	"google.golang.org/protobuf/proto"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

const (
	// topInterval is the default time between two samples, and minTopInterval the shortest: a sample costs each process
	// some milliseconds.
	topInterval    = 2 * time.Second
	minTopInterval = 500 * time.Millisecond
	// topKept is the number of events that are kept.
	topKept = 200
)

func (a *querier) topCommand() *cobra.Command {
	var interval time.Duration
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the four processes, their streams, workers, pods and events",
		Long: "Shows the node on a terminal until q: what each process uses, the lag and the resumptions of each stream,\n" +
			"workers that wait or fail and why, pods, and events. Metrics are read from the sockets of this machine: of a\n" +
			"process elsewhere, processor time, memory and streams are not available. A process that does not answer or\n" +
			"refuses something is named with the reason, and hides nothing of the others.\n\n" +
			"Of a stream: subscribers, for how long and how many messages the slowest is behind, changes per second,\n" +
			"subscriptions so far, those that went on where they were, and those that fell too far behind.\n\n" +
			"  1 to 5, Tab      overview, streams, workers, pods, events\n" +
			"  arrows, PgUp/Dn  scroll\n" +
			"  p                pause\n" +
			"  q, Ctrl-C        end",
		Example: "  quartet top\n  quartet top --once",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < minTopInterval {
				return fmt.Errorf("--interval %s: want at least %s", interval, minTopInterval)
			}
			if once {
				return a.topOnce(cmd, interval)
			}
			if !isTerminal(cmd.InOrStdin()) || !isTerminal(cmd.OutOrStdout()) {
				return errors.New("this is no terminal: quartet top --once prints everything once")
			}
			return a.topScreen(cmd, interval)
		},
	}
	a.node.AddFlags(cmd.Flags())
	cmd.Flags().DurationVar(&interval, "interval", topInterval, "time between two samples")
	cmd.Flags().BoolVar(&once, "once", false, "print all pages once, as text, and end; CPU is that of one interval")
	return cmd
}

func isTerminal(file any) bool {
	f, ok := file.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// topOnce prints all pages. It fails if no process answers.
func (a *querier) topOnce(cmd *cobra.Command, interval time.Duration) error {
	ctx := cmd.Context()
	before := a.sampleTop(ctx)
	if err := before.nothing(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.clock.After(interval):
	}
	view := topView{before: before, now: a.sampleTop(ctx), interval: interval}
	for _, service := range a.eventServices(&eventSelection{}) {
		if service.service == layout.PLEG {
			continue
		}
		events, err := service.list(ctx)
		if err != nil {
			view.missing = append(view.missing, missingEvents(service.service, err))
		}
		view.events = append(view.events, events...)
	}
	sortByTime(view.events)
	view.events = view.events[max(0, len(view.events)-topKept):]
	return view.print(cmd.OutOrStdout())
}

// print prints all pages one below the other.
func (v topView) print(out io.Writer) error {
	lines := []string{v.header(), ""}
	lines = append(lines, v.processes()...)
	for _, tab := range []topTab{topStreams, topWorkers, topPods, topEvents} {
		lines = append(lines, "")
		lines = append(lines, v.lines(tab)...)
	}
	_, err := fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// nothing returns an error if no process answers.
func (s *topSample) nothing() error {
	for _, p := range s.processes {
		if p.err == nil {
			return nil
		}
	}
	return s.podsErr
}

// topScreen shows the node on the terminal until the user or the context ends it.
func (a *querier) topScreen(cmd *cobra.Command, interval time.Duration) error {
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	first := a.sampleTop(ctx)
	if err := first.nothing(); err != nil {
		return err
	}
	events := &topEventLog{}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, service := range []layout.Service{layout.SyncLoop, layout.NodeStatus} {
		group.Go(func() error { return a.followTopEvents(groupCtx, service, events) })
	}
	screen := topScreen{
		view:   topView{now: first, interval: interval},
		sample: func() topSample { return a.sampleTop(ctx) }, events: events.all,
	}
	_, err := tea.NewProgram(screen, tea.WithContext(ctx), tea.WithAltScreen(), tea.WithoutSignalHandler(),
		tea.WithInput(cmd.InOrStdin()), tea.WithOutput(cmd.OutOrStdout())).Run()
	stop()
	followErr := group.Wait()
	if errors.Is(err, tea.ErrProgramKilled) {
		err = nil // the context has ended
	}
	return errors.Join(err, followErr)
}

// topEventLog has the last events of both services, and what refuses them.
type topEventLog struct {
	mu      sync.Mutex
	kept    []happening
	missing []string
}

// missingEvents says that the events of a service are missing, and why.
func missingEvents(service layout.Service, err error) string {
	return fmt.Sprintf("No events of %s: %s", service, oneLine(err.Error()))
}

// refuse notes that a service does not give its events.
func (l *topEventLog) refuse(service layout.Service, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missing = append(l.missing, missingEvents(service, err))
}

func (l *topEventLog) add(h happening) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, h)
	sortByTime(l.kept)
	l.kept = l.kept[max(0, len(l.kept)-topKept):]
}

func (l *topEventLog) all() (events []happening, missing []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.kept), slices.Clone(l.missing)
}

// followTopEvents adds a service's events until ctx ends. What a service has sent before it went away stays. One that
// refuses its events is noted, because it would refuse them again.
func (a *querier) followTopEvents(ctx context.Context, service layout.Service, events *topEventLog) (err error) {
	conn, err := a.node.Dial(service)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	open := podEventSource
	if service == layout.NodeStatus {
		open = nodeEventSource
	}
	err = stream.Follow(ctx, stream.FollowConfig[*enginev1.PodEvent]{
		Source: streamrpc.UntilRefused(open(conn), streamrpc.Refusal(service, "events")), Logger: slog.New(slog.DiscardHandler), Clock: a.clock, Name: string(service) + "_events",
		Equal: func(held, fresh *enginev1.PodEvent) bool { return proto.Equal(held, fresh) },
		Handle: func(change stream.Change[*enginev1.PodEvent]) {
			if change.Op == stream.OpRemove {
				return
			}
			if event, err := viewEvent(service, change.New); err == nil { // `quartet events` names one that cannot be read
				events.add(event.happened())
			}
		},
	})
	if refused := (*stream.RefusedError)(nil); errors.As(err, &refused) {
		events.refuse(service, refused)
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}
