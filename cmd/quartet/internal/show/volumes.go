package show

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

var volumeColumns = []column{
	{name: "Name", watched: len("kube-api-access-abcde")},
	{name: "Pod"},
	{name: "Kind", watched: len("local-volume")},
	{name: "Claim"},
	{name: "PV"},
	{name: "Driver"},
	{name: "State", watched: len("not in place yet")},
	{name: "Waits for"},
	{name: "Age"},
	{name: "Next try", wide: true},
	{name: "Path", wide: true},
	{name: "Last error", wide: true},
}

// The cells of a row that a watch handles: the state, and those that change with time.
const (
	volumeStateCell, volumeAgeCell, volumeNextCell = 6, 8, 9
)

func (a *querier) volumesCommand() *cobra.Command {
	var output format
	var watch bool
	var s selection
	cmd := &cobra.Command{
		Use:     "volumes [POD...]",
		Aliases: []string{"volume", "vol"},
		Short:   "Show the volumes of pods, and what they wait for",
		Long: "Show the volumes that the containers of pods mount, what an earlier syncloop has left of pods that are gone, and the\n" +
			"volumes that a CSI driver has staged and no pod uses any more, which have no POD. Paths of the node (hostPath) and images\n" +
			"are shown only while they are not in place.\n\n" +
			"  STATE       in place; not in place yet: the pod waits; being removed; left: by an earlier syncloop\n" +
			"  WAITS FOR   what has to change: a claim, an attachment, a secret, a CSI driver, which has to register; or what has\n" +
			"              not answered for two seconds: a CSI driver, an NFS server, a disk, the cluster\n" +
			"  AGE         time since syncloop began to set it up, or to unstage it\n" +
			"  NEXT TRY    time until the next try after LAST ERROR (-o wide)\n\n" +
			"With -w each change is one more line; the last line of a removed volume has the state removed.",
		Example: "  quartet get volumes\n  quartet get volumes web-0 -o wide\n  quartet get volumes -n shop -w",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			if err := s.check(); err != nil {
				return err
			}
			if watch {
				return a.watchVolumes(cmd, output, s)
			}
			return a.getVolumes(cmd, output, s)
		},
	}
	addNamespace(cmd.Flags(), &s.namespace)
	a.addFlags(cmd, &output, &watch)
	return cmd
}

func (a *querier) listVolumes(ctx context.Context) ([]*enginev1.PodVolume, error) {
	response, err := ask(ctx, a, layout.SyncLoop,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*enginev1.ListVolumesResponse, error) {
			return enginev1.NewEngineServiceClient(conn).ListVolumes(ctx, &enginev1.ListVolumesRequest{})
		})
	return response.GetVolumes(), err
}

func (a *querier) getVolumes(cmd *cobra.Command, output format, s selection) error {
	all, err := a.listVolumes(cmd.Context())
	if err != nil {
		return err
	}
	node := a.nodeFor(cmd.Context(), s)
	var pods []podName
	for _, v := range all {
		if v.GetPodUid() != "" {
			pods = append(pods, podName{v.GetNamespace(), v.GetPod(), node, v.GetPodUid()})
		}
	}
	if err := s.meansSome(pods); err != nil {
		return err
	}
	return volumeList.show(cmd, output, s, a.clock.Now(), s.volumes(all, node))
}

// volumes returns the volumes of the selected pods. Those without a pod belong to no namespace.
func (s selection) volumes(all []*enginev1.PodVolume, node string) []*enginev1.PodVolume {
	return slices.DeleteFunc(all, func(v *enginev1.PodVolume) bool {
		if v.GetPod() == "" && len(s.names) == 0 {
			return s.namespace != ""
		}
		return !s.has(podName{v.GetNamespace(), v.GetPod(), node, v.GetPodUid()})
	})
}

var volumeList = list[*enginev1.PodVolume]{
	many: "volumes of pods", columns: volumeColumns, row: volumeRow,
	name: func(v *enginev1.PodVolume) string {
		return "volume/" + strings.TrimPrefix(volumePod(v)+"/"+v.GetVolume().GetName(), noValue+"/")
	},
	whole: func(out io.Writer, output format, volumes []*enginev1.PodVolume) error {
		return printMessage(out, output, &enginev1.ListVolumesResponse{Volumes: volumes})
	},
}

// volumePod returns the pod of a volume: its UID if it has no name, and noValue for none.
func volumePod(v *enginev1.PodVolume) string {
	if v.GetPod() == "" {
		return orNone(v.GetPodUid())
	}
	return title(v.GetNamespace(), v.GetPod())
}

func volumeRow(one *enginev1.PodVolume, now time.Time) []any {
	v := one.GetVolume()
	waits, next, since := orNone(v.GetWaitsFor()), noValue, unknown
	if v.GetLastError() != "" && v.GetWaitsFor() == "" {
		waits = "its next try"
	}
	if v.GetLastError() != "" && v.GetNextTryAt() != nil {
		next = until(v.GetNextTryAt(), now)
	}
	if v.GetWantedSince() != nil {
		since = age(v.GetWantedSince().AsTime(), now)
	}
	return []any{
		v.GetName(), volumePod(one), strings.TrimPrefix(v.GetPlugin(), "kubernetes.io/"), orNone(v.GetClaim()),
		orNone(v.GetPersistentVolume()), orNone(v.GetDriver()), volumeStateWord(v.GetState()), waits, since, next,
		orNone(v.GetPath()), orNone(oneLine(v.GetLastError())),
	}
}

// volumeWatch prints the changes of volumes.
type volumeWatch struct {
	a      *querier
	out    io.Writer
	output format
	table  *table
	pods   selection
	node   string
	// shown has the last row of each volume.
	shown map[string][]any
}

// watchVolumes prints the volumes and then every change. It polls, because syncloop does not stream volumes.
func (a *querier) watchVolumes(cmd *cobra.Command, output format, s selection) error {
	w := &volumeWatch{
		a: a, out: cmd.OutOrStdout(), output: output, table: newTable(cmd.OutOrStdout(), output, volumeColumns, true),
		pods: s, node: a.nodeFor(cmd.Context(), s), shown: map[string][]any{},
	}
	return poll(a, cmd, layout.SyncLoop, a.listVolumes, w.next)
}

// next prints what has changed.
func (w *volumeWatch) next(all []*enginev1.PodVolume) error {
	var changed []*enginev1.PodVolume
	var rows [][]any
	present := map[string][]any{}
	for _, v := range w.pods.volumes(all, w.node) {
		key := v.GetPodUid() + "/" + v.GetVolume().GetName()
		present[key] = volumeRow(v, w.a.clock.Now())
		if !w.isShown(w.shown[key], present[key]) {
			changed, rows = append(changed, v), append(rows, present[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.shown)) {
		if present[key] == nil {
			w.shown[key][volumeStateCell] = "removed"
			rows = append(rows, w.shown[key])
		}
	}
	w.shown = present
	switch {
	case w.output.isTable() && len(rows) > 0:
		return w.table.print(rows...)
	case !w.output.isTable() && len(changed) > 0:
		return volumeList.print(w.out, w.output, w.a.clock.Now(), changed)
	}
	return nil
}

// isShown reports whether a row repeats the last one of its volume, apart from its times.
func (w *volumeWatch) isShown(last, row []any) bool {
	if last == nil {
		return false
	}
	for i := range row {
		if i == volumeAgeCell || i == volumeNextCell || volumeColumns[i].wide && w.output == formatTable {
			continue
		}
		if last[i] != row[i] {
			return false
		}
	}
	return true
}
