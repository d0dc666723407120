package show

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// podView is a pod in syncloop.
type podView struct {
	pod    *v1.Pod
	source string
	worker enginev1.WorkerState
}

func viewPod(p *enginev1.Pod) (podView, error) {
	pod := &v1.Pod{}
	if err := pod.Unmarshal(p.GetPod()); err != nil {
		return podView{}, fmt.Errorf(
			"syncloop sent a pod that cannot be read: %w: do quartet and syncloop have the same version?",
			err,
		)
	}
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return podView{pod: pod, source: p.GetSource(), worker: p.GetWorkerState()}, nil
}

var podColumns = []column{
	{
		name: "Name",
	},
	{name: "Ready"},
	{name: "Status", watched: len("ContainerCreating")},
	{name: "Restarts", watched: len("10 (10s ago)")},
	{name: "Age"},
	{
		name:    "IP",
		wide:    true,
		watched: len("10.88.100.100"),
	},
	{name: "Node", wide: true},
	{name: "Source", wide: true},
	{name: "Worker", wide: true},
}

// watchType returns Kubernetes' word for a change of a watched object.
func watchType(op stream.Op) string {
	switch op {
	case stream.OpAdd:
		return string(watch.Added)
	case stream.OpUpdate:
		return string(watch.Modified)
	case stream.OpRemove:
		return string(watch.Deleted)
	default:
		return string(watch.Error)
	}
}

const (
	statusCell = 2
	ageCell    = 4
)

func (v podView) row(now time.Time) []any {
	s := summarize(
		v.pod,
		v.worker == enginev1.WorkerState_WORKER_STATE_TERMINATING || v.worker == enginev1.WorkerState_WORKER_STATE_TERMINATED,
	)
	restarts := fmt.Sprint(s.restarts)
	if s.restarts > 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, age(s.lastRestart, now))
	}
	status := s.status
	if !s.unknownSince.IsZero() {
		status = fmt.Sprintf("%s (%s)", status, age(s.unknownSince, now))
	}
	begin := v.pod.CreationTimestamp.Time
	if begin.IsZero() && v.pod.Status.StartTime != nil {
		// A static pod is not created in an API server, so its age counts from the node's first sight.
		begin = v.pod.Status.StartTime.Time
	}
	return []any{
		title(v.pod.Namespace, v.pod.Name), fmt.Sprintf("%d/%d", s.ready, s.total), status, restarts, age(begin, now),
		orNone(v.pod.Status.PodIP), orNone(v.pod.Spec.NodeName), orNone(v.source), workerName(v.worker),
	}
}

func workerName(state enginev1.WorkerState) string {
	switch state {
	case enginev1.WorkerState_WORKER_STATE_SYNCING:
		return "Syncing"
	case enginev1.WorkerState_WORKER_STATE_TERMINATING:
		return "Terminating"
	case enginev1.WorkerState_WORKER_STATE_TERMINATED:
		return "Terminated"
	case enginev1.WorkerState_WORKER_STATE_UNSPECIFIED:
		return noValue
	default:
		return unknown
	}
}

func (a *querier) podsCommand() *cobra.Command {
	var output format
	var goesOn, withTypes bool
	var s selection
	cmd := &cobra.Command{
		Use:     "pods [NAME...]",
		Aliases: []string{"pod", "po"},
		Short:   "Show the pods of this node with their status",
		Long: "Show the pods of this node with their status, including terminating ones.\n\n" +
			"A pod in a namespace other than \"default\" is shown, and named, as NAMESPACE/NAME; -n shows the pods of\n" +
			"one namespace, and names refer to it. With -w each change is one more line; the last line of a removed pod\n" +
			"has the status Removed. As JSON or YAML its last state is printed once more, which --output-watch-events\n" +
			"distinguishes from a change.\n\n" +
			"The status Unknown (35s) means that the runtime has not answered for the pod for that time: READY, RESTARTS and IP\n" +
			"are the last known ones. As JSON or YAML its condition " + string(podset.ConditionRuntimeStateUnknown) + " has the reason.",
		Example: "  quartet get pods\n  quartet get pods -n kube-system\n  quartet get pods -o wide -w\n  quartet get pods hello-" + hostname() + " -o yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			if err := s.check(); err != nil {
				return err
			}
			if withTypes && (!goesOn || output != formatJSON && output != formatYAML) {
				return errors.New("--output-watch-events: it goes with -w and -o json or yaml")
			}
			if goesOn {
				return a.watchPods(cmd, output, s, withTypes)
			}
			return a.getPods(cmd, output, s)
		},
	}
	addNamespace(cmd.Flags(), &s.namespace)
	a.addFlags(cmd, &output, &goesOn)
	cmd.Flags().
		BoolVar(&withTypes, "output-watch-events", false, "with -w and -o json or yaml: print the type of each change, ADDED, MODIFIED or DELETED")
	return cmd
}

func (a *querier) listPods(ctx context.Context) ([]podView, error) {
	response, err := ask(
		ctx,
		a,
		layout.SyncLoop,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*enginev1.ListPodsResponse, error) {
			return enginev1.NewEngineServiceClient(conn).ListPods(ctx, &enginev1.ListPodsRequest{})
		},
	)
	if err != nil {
		return nil, err
	}
	views := make([]podView, 0, len(response.GetPods()))
	for _, p := range response.GetPods() {
		view, err := viewPod(p)
		if err != nil {
			return nil, err
		}
		views = append(views, view)
	}
	return views, nil
}

func (a *querier) getPods(cmd *cobra.Command, output format, s selection) error {
	all, err := a.listPods(cmd.Context())
	if err != nil {
		return err
	}
	views, err := s.choose(all)
	if err != nil {
		return err
	}
	if output.isTable() && len(views) == 0 {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "There are no pods %s.\n", s.where())
		return err
	}
	return a.printPods(cmd.OutOrStdout(), output, views, len(s.names) == 1)
}

func (a *querier) printPods(out io.Writer, output format, views []podView, single bool) error {
	switch {
	case output.isTable():
		var rows [][]any
		for _, v := range views {
			rows = append(rows, v.row(a.clock.Now()))
		}
		return newTable(out, output, podColumns, false).print(rows...)
	case output == formatName || single:
		for _, v := range views {
			if err := printObject(out, output, v.pod); err != nil {
				return err
			}
		}
		return nil
	default:
		list := &v1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []v1.Pod{}}
		for _, v := range views {
			list.Items = append(list.Items, *v.pod)
		}
		return printObject(out, output, list)
	}
}

// podWatch prints the pods and then every change.
type podWatch struct {
	now    func() time.Time
	out    io.Writer
	output format
	table  *table
	// objects prints pods in formats other than a table.
	objects printers.ResourcePrinter
	// withTypes adds the type of the change, as kubectl's --output-watch-events.
	withTypes bool
	pods      selection
	// begun is false until the first snapshot is complete; its pods are collected to be printed in order.
	begun bool
	first []podView
	// shown maps each pod to its last printed row, without its age.
	shown map[string]string
	fail  func(error)
}

func (a *querier) watchPods(cmd *cobra.Command, output format, s selection, withTypes bool) error {
	var objects printers.ResourcePrinter
	if !output.isTable() {
		var err error
		if objects, err = objectPrinter(output); err != nil {
			return err
		}
	}
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	w := &podWatch{
		now: a.clock.Now, out: cmd.OutOrStdout(), output: output, pods: s, shown: make(map[string]string), fail: fail,
		table: newTable(cmd.OutOrStdout(), output, podColumns, true), objects: objects, withTypes: withTypes,
	}
	return follow(
		ctx,
		a,
		cmd,
		layout.SyncLoop,
		podSource,
		stream.FollowConfig[*enginev1.Pod]{Handle: w.handle, Synced: w.synced, Equal: samePod},
	)
}

// samePod reports whether a pod is printed unchanged, as most are after a restart of syncloop.
func samePod(held, fresh *enginev1.Pod) bool {
	return bytes.Equal(held.GetPod(), fresh.GetPod()) && held.GetSource() == fresh.GetSource() &&
		held.GetWorkerState() == fresh.GetWorkerState()
}

func podSource(conn grpc.ClientConnInterface) stream.Source[*enginev1.Pod] {
	client := enginev1.NewEngineServiceClient(conn)
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.Pod], error) {
		messages, err := client.WatchPods(ctx, &enginev1.WatchPodsRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *enginev1.Pod, error) {
			m, err := messages.Recv()
			return m.GetFrame(), m.GetPod(), err
		}, nil
	})
}

func (w *podWatch) handle(change stream.Change[*enginev1.Pod]) {
	pod := change.New
	if len(pod.GetPod()) == 0 {
		pod = change.Old
	}
	view, err := viewPod(pod)
	if err != nil {
		w.fail(err)
		return
	}
	if !w.pods.has(nameOf(view)) {
		return
	}
	if !w.begun {
		w.first = append(w.first, view)
		return
	}
	w.show(view, change.Op)
}

func (w *podWatch) synced() {
	if w.begun {
		return
	}
	w.begun = true
	slices.SortFunc(w.first, func(x, y podView) int {
		return cmp.Or(cmp.Compare(x.pod.Namespace, y.pod.Namespace), cmp.Compare(x.pod.Name, y.pod.Name))
	})
	var rows [][]any
	for _, v := range w.first {
		if w.output.isTable() {
			rows = append(rows, v.row(w.now()))
			w.isNews(v, rows[len(rows)-1])
			continue
		}
		w.show(v, stream.OpAdd)
	}
	w.first = nil
	if len(rows) > 0 {
		if err := w.table.print(rows...); err != nil {
			w.fail(err)
		}
	}
}

func (w *podWatch) show(v podView, op stream.Op) {
	if !w.output.isTable() {
		var object runtime.Object = v.pod
		if w.withTypes {
			object = &metav1.WatchEvent{Type: watchType(op), Object: runtime.RawExtension{Object: v.pod}}
		}
		if err := w.objects.PrintObj(object, w.out); err != nil {
			w.fail(err)
		}
		return
	}
	removed := op == stream.OpRemove
	row := v.row(w.now())
	if removed {
		row[statusCell] = "Removed"
	}
	if !w.isNews(v, row) {
		return
	}
	if removed {
		delete(w.shown, string(v.pod.UID))
	}
	if err := w.table.print(row); err != nil {
		w.fail(err)
	}
}

// isNews is false if a row repeats the last row of the pod, because many changes are in fields without a column.
func (w *podWatch) isNews(v podView, row []any) bool {
	text := ""
	for i, cell := range row {
		if i == ageCell || w.output != formatWide && podColumns[i].wide {
			continue
		}
		cellText := fmt.Sprint(cell)
		if i == statusCell {
			cellText, _, _ = strings.Cut(cellText, " (") // the duration changes all the time
		}
		text += cellText + "\n"
	}
	if w.shown[string(v.pod.UID)] == text {
		return false
	}
	w.shown[string(v.pod.UID)] = text
	return true
}
