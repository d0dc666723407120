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

// happening is one thing that has happened to a pod, or to the node.
type happening struct {
	Time time.Time `json:"time"`
	// Kind is what it has happened to, or who has seen it: kindPod, kindNode or kindLifecycle.
	Kind string `json:"kind"`
	// Type is Normal or Warning, or what pleg has seen: ContainerStarted and so on.
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
	// Count is how often it has happened since FirstTime.
	Count     int32      `json:"count,omitempty"`
	FirstTime *time.Time `json:"firstTime,omitempty"`
	// TraceID is the trace that it belongs to.
	TraceID string `json:"traceID,omitempty"`
}

const (
	// kindLifecycle is what pleg has seen in the runtime.
	kindLifecycle = "Lifecycle"
	// kindPod is what syncloop has done for a pod, and what it could not do, as the kubelet's events tell it.
	kindPod = "Pod"
	// kindNode is what a service has done for the node itself, and what it could not do, in the same way.
	kindNode = "Node"
)

func sortByTime(all []happening) {
	slices.SortStableFunc(all, func(x, y happening) int { return x.Time.Compare(y.Time) })
}

// eventSelection is the events that a command is about.
type eventSelection struct {
	selection
	// types are those that are wanted; all when empty.
	types []string
	// node is the name of the node, which the names of static pods end in.
	node string
}

// eventTypes are what --types takes.
func eventTypes() []string {
	return []string{v1.EventTypeNormal, v1.EventTypeWarning, kindLifecycle, kindNode}
}

// check fails when what was asked for contradicts itself, or does not exist.
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

// wants tells whether events of one of some types are asked for.
func (s *eventSelection) wants(types ...string) bool {
	return len(s.types) == 0 || slices.ContainsFunc(types, func(t string) bool { return slices.Contains(s.types, t) })
}

func (s *eventSelection) wantsLifecycle() bool { return s.wants(kindLifecycle) }

// wantsTold tells whether what a service tells of pods and the node is asked for.
func (s *eventSelection) wantsTold() bool {
	return s.wants(v1.EventTypeNormal, v1.EventTypeWarning, kindNode)
}

// wantsNode tells whether what a service tells of the node is asked for. Who asks for pods, or a namespace, does not ask for the node.
func (s *eventSelection) wantsNode() bool {
	return s.wantsTold() && len(s.names) == 0 && s.namespace == ""
}

// wantsHappening tells whether one is asked for.
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

// only returns what of some happenings is asked for.
func (s *eventSelection) only(all []happening) []happening {
	return slices.DeleteFunc(all, func(h happening) bool { return !s.wantsHappening(h) })
}

func (a *asker) eventsCommand() *cobra.Command {
	var watch bool
	var output eventFormat
	var s eventSelection
	cmd := &cobra.Command{
		Use:     "events [POD...]",
		Aliases: []string{"event", "ev"},
		Short:   "Show what happens to pods and to the node, what was done for them, and what could not be",
		Long: "Show what happens to pods and to the node, the latest last. The kind of an event is\n\n" +
			"  Pod        what syncloop has done for a pod and what it could not do, with the types (Normal, Warning), reasons and\n" +
			"             words of a kubelet. What repeats is one event that counts. They are kept for an hour, until syncloop ends.\n" +
			"  Node       the same of the node itself, from syncloop and nodestatus. Who names pods or a namespace does not see them.\n" +
			"  Lifecycle  what pleg has seen in the container runtime: containers that start, die and are removed. Of these no\n" +
			"             history is kept: this shows the last that happened to each container that is still there.\n\n" +
			"With -w it goes on with every event; any number of commands may. A POD is NAME, NAMESPACE/NAME or a UID.",
		Example: "  quartet events hello-" + hostname() + "\n  quartet events -w --pod hello -o json\n  quartet events -w --types Warning,Lifecycle\n  quartet events --types Node\n  quartet events -n kube-system",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = append(args, s.names...)
			if err := s.check(); err != nil {
				return err
			}
			if len(s.names) > 0 {
				views, _ := a.listPods(cmd.Context()) // without them the machine's name is the node's
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
	cmd.Flags().StringSliceVar(&s.names, "pod", nil, "only events of these `PODS`, with commas between, as if they were arguments")
	cmd.Flags().StringSliceVar(&s.types, "types", nil, "only events of these `TYPES`, with commas between: "+strings.Join(eventTypes(), ", "))
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
		{name: "Time"}, {name: "Kind", watched: len(kindLifecycle)}, {name: "Type", watched: len(typeStarted)}, {name: "Pod"}, {name: "Container"},
		{name: "First seen", wide: true}, {name: "Trace", wide: true, watched: len("0af7651916cd43dd8448eb211c80319c")},
		{name: "Count"}, {name: "Reason", watched: len("Completed")}, {name: "Message"},
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
			clockTime(h.Time), h.Kind, h.Type, title(h.Namespace, h.Pod), h.Container, first, h.TraceID, count, oneLine(h.Reason), oneLine(h.Message),
		})
	}
	if len(rows) == 0 {
		return nil
	}
	return p.table.print(rows...)
}

// witness is a service that knows what happens.
type witness struct {
	service layout.Service
	// list returns what has happened, follow tells it, says then that all of it was told, and tells what happens until ctx ends.
	list   func(ctx context.Context) ([]happening, error)
	follow func(ctx context.Context, cmd *cobra.Command, tell func(...happening), synced func()) error
}

// witnesses are those who know what is asked for.
func (a *asker) witnesses(s *eventSelection) []witness {
	var all []witness
	if s.wantsLifecycle() {
		all = append(all, witness{service: layout.PLEG, list: a.listLifecycle, follow: a.followLifecycle})
	}
	if s.wantsTold() {
		all = append(all, a.toldBy(layout.SyncLoop, podEventSource))
	}
	if s.wantsNode() {
		all = append(all, a.toldBy(layout.NodeStatus, nodeEventSource))
	}
	return all
}

// toldBy is a service that tells events of pods and the node.
func (a *asker) toldBy(service layout.Service, open openEvents) witness {
	return witness{
		service: service,
		list: func(ctx context.Context) ([]happening, error) {
			events, err := a.listTold(ctx, service, open)
			all := make([]happening, len(events))
			for i, e := range events {
				all[i] = e.happened()
			}
			return all, err
		},
		follow: func(ctx context.Context, cmd *cobra.Command, tell func(...happening), synced func()) error {
			return a.followTold(ctx, cmd, service, open, tell, synced)
		},
	}
}
