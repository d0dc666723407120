package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// podUpdates is a message of configmux's stream, frame and all.
type podUpdates = *configv1.WatchPodUpdatesResponse

// told is one message of configmux's stream as it is printed.
type told struct {
	Time time.Time `json:"time"`
	Op   string    `json:"op"`
	// Reason is why a stream was RESET.
	Reason      string  `json:"reason,omitempty"`
	Source      string  `json:"source,omitempty"`
	Pod         *v1.Pod `json:"pod,omitempty"`
	Traceparent string  `json:"traceparent,omitempty"`
}

// What a message can say that is not of a pod.
const (
	opOpened   = "OPENED"
	opResumed  = "RESUMED"
	opReset    = "RESET"
	opSynced   = "SYNCED"
	opReady    = "READY"
	opNotReady = "NOTREADY"
)

// opName names what has become of a pod.
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

// tell says what a message says; false for one that only says that the stream is alive.
func tell(m podUpdates, at time.Time) (told, bool, error) {
	t := told{Time: at}
	switch m.GetFrame().GetKind() {
	case streamv1.Kind_KIND_OPENED:
		t.Op, t.Reason = opening(m.GetFrame().GetOpening().GetStart())
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
	u := m.GetPod()
	if u == nil {
		return t, false, nil
	}
	t.Op, t.Source, t.Traceparent = opName(u.GetOp()), u.GetSource(), u.GetTraceparent()
	t.Pod = &v1.Pod{}
	if err := t.Pod.Unmarshal(u.GetPod()); err != nil {
		return t, false, fmt.Errorf("configmux sent a pod that cannot be read: %w: do quartet and configmux have the same version?", err)
	}
	t.Pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return t, true, nil
}

// opening says how a subscription began, and why it did not go on where the last one ended.
func opening(start streamv1.Start) (op, reason string) {
	switch start {
	case streamv1.Start_START_RESUMED:
		return opResumed, ""
	case streamv1.Start_START_SNAPSHOT:
		return opOpened, ""
	case streamv1.Start_START_SNAPSHOT_EPOCH:
		return opReset, "configmux was started again"
	case streamv1.Start_START_SNAPSHOT_COMPACTED:
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

// updatePrinter prints the messages of a stream that are about a selection of pods, or about no pod.
type updatePrinter struct {
	out       io.Writer
	output    format
	selection selection
	table     *table
	// now gives the time of a message.
	now func() time.Time
	// found has the names of the selection that a pod had, there the pods that came.
	found map[string]bool
	there []string
}

func newUpdatePrinter(out io.Writer, output format, s selection, now func() time.Time) *updatePrinter {
	return &updatePrinter{out: out, output: output, selection: s, now: now, found: map[string]bool{}, table: newTable(out, output, []column{
		{name: "Time", watched: len("15:04:05.000")}, {name: "Op", watched: len("RECONCILE")}, {name: "Source", watched: len("replay")},
		{name: "Pod", watched: 30}, {name: "UID", wide: true, watched: 36}, {name: "Trace", watched: 32}, {name: "Reason", wide: true},
	}, true)}
}

func (p *updatePrinter) print(m podUpdates) error {
	t, says, err := tell(m, p.now())
	if err != nil || !says {
		return err
	}
	if t.Pod != nil && !p.selects(t.Pod) {
		return nil
	}
	if p.output == formatJSON {
		return json.NewEncoder(p.out).Encode(t)
	}
	pod, uid := "", ""
	if t.Pod != nil {
		pod, uid = t.Pod.Namespace+"/"+t.Pod.Name, string(t.Pod.UID)
	}
	return p.table.print([]any{t.Time.Local().Format("15:04:05.000"), t.Op, t.Source, pod, uid, traceID(t.Traceparent), t.Reason})
}

// selects is true for a pod that is to be printed, and notes which names of the selection are of pods.
func (p *updatePrinter) selects(pod *v1.Pod) bool {
	name := podName{pod.Namespace, pod.Name, pod.Spec.NodeName}
	p.there = append(p.there, title(pod.Namespace, pod.Name))
	for _, argument := range p.selection.names {
		if p.selection.means(argument, name) {
			p.found[argument] = true
		}
	}
	return p.selection.has(name)
}

// traceID is the trace of a traceparent, empty when there is none.
func traceID(traceparent string) string {
	id := trace.SpanContextFromContext(telemetry.WithTraceparent(context.Background(), traceparent)).TraceID()
	if !id.IsValid() {
		return ""
	}
	return id.String()
}

func (a *asker) updatesCommand() *cobra.Command {
	var watch bool
	var output updateFormat
	var s selection
	cmd := &cobra.Command{
		Use:   "updates [POD...]",
		Short: "Show what configmux tells the node to run: its stream of pod updates",
		Long: "Show what configmux tells the node to run: its stream of pod updates, one line for each message, with the time at\n" +
			"which it came. Changes of one pod that configmux could not send yet are one message, the latest.\n\n" +
			"Of a pod: ADD, UPDATE, DELETE (with grace), REMOVE (gone from its source), RECONCILE (only its status), RESTORE (from the\n" +
			"last start). Of a source: READY once all its pods were read, NOTREADY before. Of the stream: OPENED, SYNCED after the last\n" +
			"of what is desired now, RESUMED when it went on where it had ended, RESET when it had to begin anew: what comes up to\n" +
			"the next SYNCED then is all that is desired. -o wide says why.\n\n" +
			"Without -w it ends at SYNCED.",
		Example: "  quartet updates\n  quartet updates -w -n kube-system\n  quartet updates hello-" + hostname() + " -w -o json\n  quartet updates record /tmp/updates.jsonl --for 10m",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			if err := s.check(); err != nil {
				return err
			}
			p := newUpdatePrinter(cmd.OutOrStdout(), output.format, s, a.clock.Now)
			if watch {
				return a.tap(cmd.Context(), cmd, p.print)
			}
			return a.listUpdates(cmd.Context(), p)
		},
		Args: cobra.ArbitraryArgs,
	}
	addNamespace(cmd.Flags(), &s.namespace)
	a.addFlags(cmd, nil, &watch)
	cmd.Flags().VarP(&output, "output", "o", "`FORMAT` of the output: wide, or json, one object a line")
	cmd.AddCommand(a.recordCommand())
	return cmd
}

// listUpdates prints a snapshot.
func (a *asker) listUpdates(ctx context.Context, p *updatePrinter) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := a.connect(ctx, layout.ConfigMux)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	sub, err := updateSource(conn).Subscribe(ctx, nil)
	if err != nil {
		return explain(layout.ConfigMux, err)
	}
	defer sub.Close()
	for {
		m, err := sub.Next(ctx)
		if errors.Is(err, context.Canceled) {
			return nil // by whoever looks
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
			return p.selection.noSuchPod(name, p.there)
		}
	}
	return nil
}

// tap hands every message of the stream to each, in order, until ctx ends or each fails. It goes on when configmux is back.
func (a *asker) tap(ctx context.Context, cmd *cobra.Command, each func(podUpdates) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	open := func(conn grpc.ClientConnInterface) stream.Source[podUpdates] {
		return tapped{updateSource(conn), func(m podUpdates) {
			if err := each(m); err != nil {
				fail(err)
			}
		}}
	}
	// What follows keeps the place in the stream, and compares snapshots; here each message itself is of interest.
	return follow(ctx, a, cmd, layout.ConfigMux, open, stream.FollowConfig[podUpdates]{Handle: func(stream.Change[podUpdates]) {}})
}

// tapped is a source whose messages are told to somebody on their way.
type tapped struct {
	stream.Source[podUpdates]
	tell func(podUpdates)
}

// Subscribe implements stream.Source.
func (t tapped) Subscribe(ctx context.Context, token []byte) (stream.Subscription[podUpdates], error) {
	sub, err := t.Source.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return tappedSubscription{sub, t.tell}, nil
}

type tappedSubscription struct {
	stream.Subscription[podUpdates]
	tell func(podUpdates)
}

// Next implements stream.Subscription.
func (t tappedSubscription) Next(ctx context.Context) (stream.Message[podUpdates], error) {
	// Who cannot take a message has ended ctx: none is taken after it.
	if err := ctx.Err(); err != nil {
		return stream.Message[podUpdates]{}, err
	}
	m, err := t.Subscription.Next(ctx)
	if err == nil {
		t.tell(m.Value)
	}
	return m, err
}

func updateSource(conn grpc.ClientConnInterface) stream.Source[podUpdates] {
	client := configv1.NewConfigServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[podUpdates], error) {
		watch, err := client.WatchPodUpdates(ctx, &configv1.WatchPodUpdatesRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, podUpdates, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m, err
		}, nil
	})
}
