package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
)

// happening is one event of a pod or the node.
type happening struct {
	Time time.Time `json:"time"`
	// Kind is the kind of the event's object or source: kindPod, kindNode or kindLifecycle.
	Kind string `json:"kind"`
	// Type is Normal or Warning, or pleg's type, such as ContainerStarted.
	Type        string `json:"type"`
	Node        string `json:"node,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Pod         string `json:"pod,omitempty"`
	PodUID      string `json:"podUID,omitempty"`
	Container   string `json:"container,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	ExitCode    *int32 `json:"exitCode,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Message     string `json:"message,omitempty"`
	// Count is the number of occurrences since FirstTime.
	Count     int32      `json:"count,omitempty"`
	FirstTime *time.Time `json:"firstTime,omitempty"`
	// TraceID is the ID of its trace.
	TraceID string `json:"traceID,omitempty"`
}

const (
	// kindLifecycle is a change that pleg has observed in the runtime.
	kindLifecycle = "Lifecycle"
	// kindPod is an event of syncloop about a pod, as the kubelet records it.
	kindPod = "Pod"
	// kindNode is an event of a service about the node, as the kubelet records it.
	kindNode = "Node"
)

func sortByTime(all []happening) {
	slices.SortStableFunc(all, func(x, y happening) int { return x.Time.Compare(y.Time) })
}

// eventSelection selects events for a command.
type eventSelection struct {
	selection
	// types are the selected types; all if empty.
	types []string
	// node is the name of the node, the suffix of static pods' names.
	node string
}

// eventTypes returns the valid values of --types.
func eventTypes() []string {
	return []string{v1.EventTypeNormal, v1.EventTypeWarning, kindLifecycle, kindNode}
}

// check fails if the selection is contradictory or invalid.
func (s *eventSelection) check() error {
	for i, wanted := range s.types {
		known := slices.IndexFunc(eventTypes(), func(t string) bool { return strings.EqualFold(t, wanted) })
		if known < 0 {
			return fmt.Errorf("--types: %q: must be %s", wanted, strings.Join(eventTypes(), ", "))
		}
		s.types[i] = eventTypes()[known]
	}
	return s.selection.check()
}

// wants reports whether events of one of the types are selected.
func (s *eventSelection) wants(types ...string) bool {
	return len(s.types) == 0 || slices.ContainsFunc(types, func(t string) bool { return slices.Contains(s.types, t) })
}

func (s *eventSelection) wantsLifecycle() bool { return s.wants(kindLifecycle) }

// wantsRecorded reports whether events about pods or the node are selected.
func (s *eventSelection) wantsRecorded() bool {
	return s.wants(v1.EventTypeNormal, v1.EventTypeWarning, kindNode)
}

// wantsNode reports whether events about the node are selected. A filter for pods or a namespace excludes them.
func (s *eventSelection) wantsNode() bool {
	return s.wantsRecorded() && len(s.names) == 0 && s.namespace == ""
}

// wantsHappening reports whether an event is selected.
func (s *eventSelection) wantsHappening(h happening) bool {
	pod := func() bool { return s.has(podName{namespace: h.Namespace, name: h.Pod, node: s.node, uid: h.PodUID}) }
	switch h.Kind {
	case kindNode:
		return s.wants(h.Type, kindNode) && s.wantsNode()
	case kindLifecycle:
		return s.wantsLifecycle() && pod()
	default:
		return s.wants(h.Type) && pod()
	}
}

// only returns the selected events.
func (s *eventSelection) only(all []happening) []happening {
	return slices.DeleteFunc(all, func(h happening) bool { return !s.wantsHappening(h) })
}

func (a *querier) eventsCommand() *cobra.Command {
	var watch bool
	var output eventFormat
	var s eventSelection
	cmd := &cobra.Command{
		Use:     "events [POD...]",
		Aliases: []string{"event", "ev"},
		Short:   "Show events of pods and of the node",
		Long: "Show events of pods and of the node, the latest last. The kind of an event is\n\n" +
			"  Pod        an action or a failure of syncloop for a pod, with the types (Normal, Warning), reasons and\n" +
			"             messages of a kubelet. Repeated events are counted. They are kept for an hour, until syncloop ends.\n" +
			"  Node       the same for the node itself, from syncloop and nodestatus. Naming pods or a namespace excludes them.\n" +
			"  Lifecycle  a change that pleg has observed in the container runtime: containers that start, die and are removed.\n" +
			"             There is no history: this shows the last change of each container that still exists.\n\n" +
			"With -w it continues with every event. A POD is NAME, NAMESPACE/NAME or a UID.",
		Example: "  quartet events hello-" + hostname() + "\n  quartet events -w --pod hello -o json\n  quartet events -w --types Warning,Lifecycle\n  quartet events --types Node\n  quartet events -n kube-system",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = append(args, s.names...)
			if err := s.check(); err != nil {
				return err
			}
			if len(s.names) > 0 {
				views, _ := a.listPods(cmd.Context()) // without them the node's name is the machine's
				s.node = nodeOf(views)
			}
			p := newEventPrinter(cmd.OutOrStdout(), output.format)
			if watch {
				return a.watchEvents(cmd, p, &s)
			}
			return a.listEvents(cmd, p, &s)
		},
	}
	addNamespace(cmd.Flags(), &s.namespace)
	cmd.Flags().
		StringSliceVar(&s.names, "pod", nil, "only events of these `PODS`, with commas between, as if they were arguments")
	cmd.Flags().
		StringSliceVar(&s.types, "types", nil, "only events of these `TYPES`, with commas between: "+strings.Join(eventTypes(), ", "))
	a.addFlags(cmd, nil, &watch)
	cmd.Flags().VarP(&output, "output", "o", "`FORMAT` of the output: wide, or json, one object a line")
	return cmd
}

// eventFormat is a format of events: a table or JSON.
type eventFormat struct{ format }

// Set implements pflag.Value.
func (f *eventFormat) Set(text string) error {
	if text != string(formatJSON) && text != string(formatWide) {
		return errors.New("must be wide or json")
	}
	return f.format.Set(text)
}

type eventPrinter struct {
	out   io.Writer
	json  bool
	table *table
}

func newEventPrinter(out io.Writer, output format) *eventPrinter {
	return &eventPrinter{out: out, json: output == formatJSON, table: newTable(out, output, []column{
		{
			name: "Time",
		},
		{name: "Kind", watched: len(kindLifecycle)},
		{name: "Type", watched: len(typeStarted)},
		{name: "Pod"},
		{name: "Container"},
		{name: "First seen", wide: true},
		{name: "Trace", wide: true, watched: len("0af7651916cd43dd8448eb211c80319c")},
		{name: "Count"},
		{name: "Reason", watched: len("Completed")},
		{name: "Message"},
	}, true)}
}

func (p *eventPrinter) print(all ...happening) error {
	if p.json {
		encoder := json.NewEncoder(p.out)
		for _, h := range all {
			if err := encoder.Encode(h); err != nil {
				return err
			}
		}
		return nil
	}
	clockTime := func(t time.Time) string { return t.Local().Format("15:04:05.000") }
	var rows [][]any
	for _, h := range all {
		count, first := "", ""
		if h.Count > 0 {
			count = fmt.Sprint(h.Count)
		}
		if h.FirstTime != nil {
			first = clockTime(*h.FirstTime)
		}
		rows = append(rows, []any{
			clockTime(h.Time),
			h.Kind,
			h.Type,
			title(h.Namespace, h.Pod),
			h.Container,
			first,
			h.TraceID,
			count,
			oneLine(h.Reason),
			oneLine(h.Message),
		})
	}
	if len(rows) == 0 {
		return nil
	}
	return p.table.print(rows...)
}

// eventService is a service with events.
type eventService struct {
	service layout.Service
	// list returns past events. follow passes them to emit, calls synced, and passes further events to emit until ctx
	// ends.
	list   func(ctx context.Context) ([]happening, error)
	follow func(ctx context.Context, cmd *cobra.Command, emit func(...happening), synced func()) error
}

// eventServices returns the services with selected events.
func (a *querier) eventServices(s *eventSelection) []eventService {
	var all []eventService
	if s.wantsLifecycle() {
		all = append(all, eventService{service: layout.PLEG, list: a.listLifecycle, follow: a.followLifecycle})
	}
	if s.wantsRecorded() {
		all = append(all, a.recordedBy(layout.SyncLoop, podEventSource))
	}
	if s.wantsNode() {
		all = append(all, a.recordedBy(layout.NodeStatus, nodeEventSource))
	}
	return all
}

// recordedBy returns a service with events about pods and the node.
func (a *querier) recordedBy(service layout.Service, open openEvents) eventService {
	return eventService{
		service: service,
		list: func(ctx context.Context) ([]happening, error) {
			events, err := a.listRecorded(ctx, service, open)
			all := make([]happening, len(events))
			for i, e := range events {
				all[i] = e.happened()
			}
			return all, err
		},
		follow: func(ctx context.Context, cmd *cobra.Command, emit func(...happening), synced func()) error {
			return a.followRecorded(ctx, cmd, service, open, emit, synced)
		},
	}
}
