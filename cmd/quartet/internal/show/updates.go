package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// podUpdates is a message of configmux's stream, including its frame.
type podUpdates = *configv1.WatchPodUpdatesResponse

// updateView is the printed form of one message.
type updateView struct {
	Time time.Time `json:"time"`
	Op   string    `json:"op"`
	// Reason is why a stream was RESET.
	Reason      string  `json:"reason,omitempty"`
	Source      string  `json:"source,omitempty"`
	Pod         *v1.Pod `json:"pod,omitempty"`
	Traceparent string  `json:"traceparent,omitempty"`
	// Set is the content of a SET, in the modes with sets.
	Set *setView `json:"set,omitempty"`
}

// The operations of messages that are not about a pod.
const (
	opOpened   = "OPENED"
	opResumed  = "RESUMED"
	opReset    = "RESET"
	opSynced   = "SYNCED"
	opReady    = "READY"
	opNotReady = "NOTREADY"
	opSet      = "SET"
)

// opName returns the name of an operation.
func opName(op configv1.Op) string {
	switch op {
	case configv1.Op_OP_ADD:
		return "ADD"
	case configv1.Op_OP_UPDATE:
		return "UPDATE"
	case configv1.Op_OP_DELETE:
		return "DELETE"
	case configv1.Op_OP_REMOVE:
		return "REMOVE"
	case configv1.Op_OP_RECONCILE:
		return "RECONCILE"
	case configv1.Op_OP_RESTORE:
		return "RESTORE"
	case configv1.Op_OP_UNSPECIFIED:
		return unknown
	default:
		return op.String()
	}
}

// viewUpdate converts a message; hasContent is false for a bookmark.
func viewUpdate(m podUpdates, mode updateMode, at time.Time) (t updateView, hasContent bool, err error) {
	t = updateView{Time: at}
	switch m.GetFrame().GetKind() {
	case streamv1.Kind_KIND_OPENED:
		t.Op, t.Reason = opening(m.GetFrame().GetOpening().GetStart(), mode)
		return t, true, nil
	case streamv1.Kind_KIND_SYNCED:
		t.Op = opSynced
		return t, true, nil
	case streamv1.Kind_KIND_SNAPSHOT, streamv1.Kind_KIND_DELTA:
	case streamv1.Kind_KIND_BOOKMARK, streamv1.Kind_KIND_UNSPECIFIED:
		return t, false, nil
	default:
		return t, false, nil
	}
	if source := m.GetSource(); source != nil {
		t.Op, t.Source = opNotReady, source.GetName()
		if source.GetReady() {
			t.Op = opReady
		}
		return t, true, nil
	}
	if set := m.GetSet(); set != nil {
		t.Op, t.Source = opSet, set.GetSource()
		t.Set, err = viewSet(set)
		return t, err == nil, err
	}
	u := m.GetPod()
	if u == nil {
		return t, false, nil
	}
	t.Op, t.Source, t.Traceparent = opName(u.GetOp()), u.GetSource(), u.GetTraceparent()
	t.Pod, err = decodePod(u)
	return t, err == nil, err
}

// decodePod returns the pod of an update.
func decodePod(u *configv1.PodUpdate) (*v1.Pod, error) {
	pod := &v1.Pod{}
	if err := pod.Unmarshal(u.GetPod()); err != nil {
		return nil, fmt.Errorf(
			"configmux sent a pod that cannot be read: %w: do quartet and configmux have the same version?",
			err,
		)
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return pod, nil
}

// opening returns how a subscription began, and why it did not resume.
func opening(start streamv1.Start, mode updateMode) (op, reason string) {
	switch start {
	case streamv1.Start_START_RESUMED:
		return opResumed, ""
	case streamv1.Start_START_SNAPSHOT:
		return opOpened, ""
	case streamv1.Start_START_SNAPSHOT_EPOCH:
		return opReset, "configmux was restarted"
	case streamv1.Start_START_SNAPSHOT_COMPACTED:
		if mode.hasSets() {
			return opReset, "in this mode each connection begins with a SET"
		}
		return opReset, "too much was missed"
	case streamv1.Start_START_SNAPSHOT_INVALID:
		return opReset, "the token cannot be read"
	case streamv1.Start_START_UNSPECIFIED:
		return opOpened, ""
	default:
		return opReset, start.String()
	}
}

// updateFormat is a format of updates: a table, a wide one, or JSON.
type updateFormat struct{ format }

// Set implements pflag.Value.
func (f *updateFormat) Set(text string) error {
	if text != string(formatJSON) && text != string(formatWide) {
		return errors.New("must be wide or json")
	}
	return f.format.Set(text)
}

// updatePrinter prints the messages of a stream about selected pods, or about no pod.
type updatePrinter struct {
	out       io.Writer
	output    format
	mode      updateMode
	selection selection
	table     *table
	// now returns the time of a message.
	now func() time.Time
	// found are the names of the selection with a pod, and existing the pods so far; nil if they are not needed, because a
	// watch may run for months.
	found    map[string]bool
	existing []string
}

func newUpdatePrinter(out io.Writer, output format, mode updateMode, s selection, now func() time.Time) *updatePrinter {
	return &updatePrinter{
		out:       out,
		output:    output,
		mode:      mode,
		selection: s,
		now:       now,
		table: newTable(out, output, []column{
			{
				name:    "Time",
				watched: len("15:04:05.000"),
			},
			{name: "Op", watched: len("RECONCILE")},
			{name: "Source", watched: len("replay")},
			{
				name:    "Pod",
				watched: 30,
			},
			{name: "UID", wide: true, watched: 36},
			{name: "Trace", watched: 32},
			{name: "Reason", wide: true},
		}, true),
	}
}

func (p *updatePrinter) print(m podUpdates) error {
	t, hasContent, err := viewUpdate(m, p.mode, p.now())
	if err != nil || !hasContent {
		return err
	}
	if t.Pod != nil && !p.selects(t.Pod) {
		return nil
	}
	if t.Set != nil {
		t.Set.Pods = slices.DeleteFunc(t.Set.Pods, func(u setPod) bool { return !p.selects(u.Pod) })
	}
	if p.output == formatJSON {
		return json.NewEncoder(p.out).Encode(t)
	}
	pod, uid := "", ""
	if t.Pod != nil {
		pod, uid = t.Pod.Namespace+"/"+t.Pod.Name, string(t.Pod.UID)
	}
	var below [][]any
	if t.Set != nil {
		pod, below = t.Set.summary(), t.Set.rows(p.output == formatWide)
	}
	line := []any{t.Time.Local().Format("15:04:05.000"), t.Op, t.Source, pod, uid, traceID(t.Traceparent), t.Reason}
	return p.table.print(append([][]any{line}, below...)...)
}

// selects reports whether a pod is selected, and records for a list which names have pods.
func (p *updatePrinter) selects(pod *v1.Pod) bool {
	name := podName{pod.Namespace, pod.Name, pod.Spec.NodeName, string(pod.UID)}
	if p.found != nil {
		p.existing = append(p.existing, title(pod.Namespace, pod.Name))
		for _, argument := range p.selection.names {
			if p.selection.means(argument, name) {
				p.found[argument] = true
			}
		}
	}
	return p.selection.has(name)
}

// traceID returns the trace ID of a traceparent; empty if there is none.
func traceID(traceparent string) string {
	id := trace.SpanContextFromContext(telemetry.WithTraceparent(context.Background(), traceparent)).TraceID()
	if !id.IsValid() {
		return ""
	}
	return id.String()
}

func (a *querier) updatesCommand() *cobra.Command {
	var watch bool
	var output updateFormat
	mode := modeIncremental
	var s selection
	cmd := &cobra.Command{
		Use:   "updates [POD...]",
		Short: "Show configmux's stream of desired pods",
		Long: "Show configmux's stream of desired pods, one line for each message, with the time at\n" +
			"which it arrived. Unsent changes of one pod are folded into one message, the latest.\n\n" +
			"For a pod: ADD, UPDATE, DELETE (with grace), REMOVE (gone from its source), RECONCILE (only its status), RESTORE (from a\n" +
			"checkpoint). For a source: READY after all its pods were read, NOTREADY before. For the stream: OPENED, SYNCED after the\n" +
			"last desired pod, RESUMED if it continues from its last message, RESET if it starts again: the messages up to\n" +
			"the next SYNCED are then the full desired set. -o wide shows the reason.\n\n" +
			"--mode is the form of changes:\n" +
			"  incremental           a message for each changed pod, and for each source; the node itself uses this\n" +
			"  snapshot              SET, all pods of all sources, on each change other than a status change\n" +
			"  snapshot-and-updates  SET if pods were added or removed or a source has become ready, UPDATE and DELETE otherwise\n" +
			"A SET names the changed source, and lists each pod with its own source and the trace of its last change;\n" +
			"more than 20 are listed with -o wide only. In these modes a new connection begins with a SET, and\n" +
			"there is no RECONCILE.\n\n" +
			"Without -w it ends at SYNCED.",
		Example: "  quartet updates\n  quartet updates -w -n kube-system\n  quartet updates -w --mode snapshot-and-updates\n  quartet updates hello-" + hostname() +
			" -w -o json\n  quartet updates record /tmp/updates.jsonl --for 10m",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			if err := s.check(); err != nil {
				return err
			}
			p := newUpdatePrinter(cmd.OutOrStdout(), output.format, mode, s, a.clock.Now)
			if watch {
				return a.tap(cmd.Context(), cmd, mode, p.print)
			}
			return a.listUpdates(cmd.Context(), p)
		},
		Args: cobra.ArbitraryArgs,
	}
	addNamespace(cmd.Flags(), &s.namespace)
	a.addFlags(cmd, nil, &watch)
	cmd.Flags().VarP(&output, "output", "o", "`FORMAT` of the output: wide, or json, one object a line")
	cmd.Flags().Var(&mode, "mode", "`MODE` of the stream: incremental, snapshot or snapshot-and-updates")
	cmd.AddCommand(a.recordCommand())
	return cmd
}

// listUpdates prints a snapshot.
func (a *querier) listUpdates(ctx context.Context, p *updatePrinter) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := a.connect(ctx, layout.ConfigMux)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	sub, err := updateSource(conn, p.mode).Subscribe(ctx, nil)
	if err != nil {
		return explain(layout.ConfigMux, err)
	}
	defer sub.Close()
	p.found = map[string]bool{}
	for {
		m, err := sub.Next(ctx)
		if errors.Is(err, context.Canceled) {
			return nil // the caller checks it
		}
		if err != nil {
			return explain(layout.ConfigMux, err)
		}
		if err := p.print(m.Value); err != nil {
			return err
		}
		if m.Kind == stream.KindSynced {
			break
		}
	}
	for _, name := range p.selection.names {
		if !p.found[name] {
			return p.selection.noSuchPod(name, p.existing)
		}
	}
	return nil
}

// tap passes every message of the stream in a mode to each, in order, until ctx ends or each fails. It continues when
// configmux is reachable again.
func (a *querier) tap(ctx context.Context, cmd *cobra.Command, mode updateMode, each func(podUpdates) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	open := func(conn grpc.ClientConnInterface) stream.Source[podUpdates] {
		return tapped{updateSource(conn, mode), func(m podUpdates) {
			if err := each(m); err != nil {
				fail(err)
			}
		}}
	}
	// The follower keeps the position in the stream, and compares snapshots; here each message itself is needed.
	return follow(
		ctx,
		a,
		cmd,
		layout.ConfigMux,
		open,
		stream.FollowConfig[podUpdates]{Handle: func(stream.Change[podUpdates]) {}},
	)
}

// tapped is a source that passes its messages to a function.
type tapped struct {
	stream.Source[podUpdates]
	observe func(podUpdates)
}

// Subscribe implements stream.Source.
func (t tapped) Subscribe(ctx context.Context, token []byte) (stream.Subscription[podUpdates], error) {
	sub, err := t.Source.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return tappedSubscription{sub, t.observe}, nil
}

type tappedSubscription struct {
	stream.Subscription[podUpdates]
	observe func(podUpdates)
}

// Next implements stream.Subscription.
func (t tappedSubscription) Next(ctx context.Context) (stream.Message[podUpdates], error) {
	// A failed function has ended ctx: no message is read after it.
	if err := ctx.Err(); err != nil {
		return stream.Message[podUpdates]{}, err
	}
	m, err := t.Subscription.Next(ctx)
	if err == nil {
		t.observe(m.Value)
	}
	return m, err
}

func updateSource(conn grpc.ClientConnInterface, mode updateMode) stream.Source[podUpdates] {
	client := configv1.NewConfigServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[podUpdates], error) {
		watch, err := client.WatchPodUpdates(ctx, &configv1.WatchPodUpdatesRequest{ResumeToken: token, Mode: mode.wire()})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, podUpdates, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m, err
		}, nil
	})
}
