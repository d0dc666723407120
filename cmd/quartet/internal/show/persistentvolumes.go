package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

var persistentVolumeColumns = []column{
	{name: "Name"},
	{name: "Capacity"},
	{name: "Access Modes"},
	{name: "Reclaim Policy"},
	{name: "Status"},
	{name: "Claim"},
	{name: "StorageClass"},
	{name: "Age"},
	{name: "Problem", wide: true},
}

// persistentVolumeView is a persistent volume with why it cannot be deleted; empty if it can, or need not.
type persistentVolumeView struct {
	pv      *v1.PersistentVolume
	problem string
}

func (a *querier) persistentVolumesCommand() *cobra.Command {
	var output format
	cmd := &cobra.Command{
		Use:     "persistentvolumes [NAME...]",
		Aliases: []string{"persistentvolume", "pv"},
		Short:   "Show the persistent volumes of a node without an API server",
		Long: "Show the persistent volumes of the claims of this node: directories, and volumes of storage classes. The volume of a\n" +
			"deleted claim is Released until its CSI driver has deleted it, and stays Released if its storage class retains it.\n" +
			"A node with an API server has none of its own.",
		Example: "  quartet get pv\n  quartet get pv -o wide",
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := a.chosenPersistentVolumes(cmd, args)
			if err != nil {
				return err
			}
			if output.isTable() && len(all) == 0 {
				_, err := fmt.Fprintln(cmd.ErrOrStderr(), "This node has no persistent volumes of its own; 'kubectl get pv' shows those of a cluster.")
				return err
			}
			return printPersistentVolumes(cmd.OutOrStdout(), output, all, len(args) == 1, a.clock.Now())
		},
	}
	a.addFlags(cmd, &output, nil)
	return cmd
}

// chosenPersistentVolumes returns the volumes with some names; all without names. They are sorted by name.
func (a *querier) chosenPersistentVolumes(cmd *cobra.Command, names []string) ([]persistentVolumeView, error) {
	response, err := a.listClaims(cmd.Context())
	if err != nil {
		return nil, err
	}
	all, err := persistentVolumesIn(response)
	if err != nil || len(names) == 0 {
		return all, err
	}
	var chosen []persistentVolumeView
	for _, name := range names {
		i := slices.IndexFunc(all, func(v persistentVolumeView) bool { return v.pv.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no persistentvolume %q: 'quartet get persistentvolumes' shows all", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// persistentVolumesIn returns the volumes of syncloop's answer, sorted by name.
func persistentVolumesIn(response *enginev1.ListClaimsResponse) ([]persistentVolumeView, error) {
	var all []persistentVolumeView
	add := func(data []byte, problem string) error {
		pv, err := decodePV(data)
		if pv != nil {
			all = append(all, persistentVolumeView{pv: pv, problem: problem})
		}
		return err
	}
	for _, claim := range response.GetClaims() {
		if err := add(claim.GetPersistentVolume(), claim.GetProblem()); err != nil {
			return nil, err
		}
	}
	for _, released := range response.GetReleased() {
		if err := add(released.GetPersistentVolume(), released.GetProblem()); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(x, y persistentVolumeView) int { return cmp.Compare(x.pv.Name, y.pv.Name) })
	return all, nil
}

// decodePV decodes a persistent volume; nil if there is none.
func decodePV(data []byte) (*v1.PersistentVolume, error) {
	if len(data) == 0 {
		return nil, nil
	}
	pv := &v1.PersistentVolume{}
	if err := pv.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("syncloop sent a volume that cannot be read: %w: do quartet and syncloop have the same version?", err)
	}
	pv.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}
	return pv, nil
}

func printPersistentVolumes(
	out io.Writer, output format, all []persistentVolumeView, single bool, now time.Time,
) error {
	var rows [][]any
	list := &v1.PersistentVolumeList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeList"}, Items: []v1.PersistentVolume{},
	}
	for _, v := range all {
		claim := ""
		if ref := v.pv.Spec.ClaimRef; ref != nil {
			claim = title(ref.Namespace, ref.Name)
		}
		rows = append(rows, []any{
			v.pv.Name, v.pv.Spec.Capacity.Storage().String(), shortModes(v.pv.Spec.AccessModes),
			string(v.pv.Spec.PersistentVolumeReclaimPolicy), string(v.pv.Status.Phase), claim, v.pv.Spec.StorageClassName,
			age(v.pv.CreationTimestamp.Time, now), orNone(oneLine(v.problem)),
		})
		list.Items = append(list.Items, *v.pv)
	}
	switch {
	case output.isTable():
		return newTable(out, output, persistentVolumeColumns, false).print(rows...)
	case output == formatName:
		for _, v := range all {
			if _, err := fmt.Fprintf(out, "persistentvolume/%s\n", v.pv.Name); err != nil {
				return err
			}
		}
		return nil
	case single:
		return printObject(out, output, &list.Items[0])
	}
	return printObject(out, output, list)
}
