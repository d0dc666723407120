package show

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// claims are the persistent volume claims, whose documents are in configmux.
var claims = objectKind{"PersistentVolumeClaim", "persistentvolumeclaim", "persistent volume claims", "pvc"}

// The annotations of syncloop that say whether the size of a claim is enforced, and why not.
const (
	annotationSizeEnforced    = "quartet.dev/size-enforced"
	annotationSizeNotEnforced = "quartet.dev/size-not-enforced"
)

// The phases of a claim that its object does not have.
const (
	phaseTerminating = "Terminating"
	phaseUnknown     = "Unknown"
)

var claimColumns = []column{
	{name: "Name"},
	{name: "Status"},
	{name: "Volume"},
	{name: "Capacity"},
	{name: "Access Modes"},
	{name: "StorageClass"},
	{name: "Age"},
	{name: "VolumeMode", wide: true},
	{name: "Source", wide: true},
	{name: "Used By", wide: true},
}

// claimView is a claim with what configmux and syncloop know about it.
type claimView struct {
	claim *v1.PersistentVolumeClaim
	// pv is the persistent volume; nil if the claim has none.
	pv *v1.PersistentVolume
	// source and path are those of the document; empty for the claim of an ephemeral volume, and for a deleted claim.
	source, path string
	usedBy       []string
	problem      string
	// isUnknown is true if syncloop does not answer.
	isUnknown bool
}

// phase returns the status of the claim in the words of kubectl.
func (v claimView) phase() string {
	switch {
	case v.isUnknown:
		return phaseUnknown
	case v.claim.DeletionTimestamp != nil:
		return phaseTerminating
	default:
		return string(v.claim.Status.Phase)
	}
}

func (a *querier) claimsCommand() *cobra.Command {
	var output format
	var s selection
	cmd := &cobra.Command{
		Use:     "persistentvolumeclaims [NAME...]",
		Aliases: []string{"persistentvolumeclaim", "pvc"},
		Short:   "Show the persistent volume claims of a node without an API server",
		Long: "Show the persistent volume claims that this node holds: from its manifests, those that were applied, and those of\n" +
			"ephemeral volumes. A claim is Pending until the first pod uses it, then Bound to a directory of the node or to a\n" +
			"volume of its storage class, and Terminating when it was deleted and a pod still uses it. A node with an API server\n" +
			"has none of its own.",
		Example: "  quartet get pvc\n  quartet get pvc data -o yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			chosen, err := a.chosenClaims(cmd, s)
			if err != nil {
				return err
			}
			return claimsList(len(s.names) == 1).show(cmd, output, s, a.clock.Now(), chosen)
		},
	}
	addClaimNamespace(cmd, &s)
	a.addFlags(cmd, &output, nil)
	return cmd
}

// addClaimNamespace adds -n.
func addClaimNamespace(cmd *cobra.Command, s *selection) {
	cmd.Flags().StringVarP(&s.namespace, "namespace", "n", "", "`NAMESPACE` of the "+claims.many+
		"; without it they are named by NAMESPACE/NAME, or by NAME in \"default\"")
}

func (a *querier) describeClaimCommand() *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use:     "persistentvolumeclaim [NAME...]",
		Aliases: []string{"persistentvolumeclaims", "pvc"},
		Short:   "Show everything that the node knows about a persistent volume claim",
		Long: "Show everything that the node knows about a persistent volume claim: its document, its directory or its volume, the\n" +
			"pods that use it, what it waits for, and why it cannot be removed. Without a name all claims are described.",
		Example: "  quartet describe pvc data",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			chosen, err := a.chosenClaims(cmd, s)
			if err != nil {
				return err
			}
			if len(chosen) == 0 {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "There are no %s %s.\n", claims.many, s.where())
				return err
			}
			for i, v := range chosen {
				p := newPage()
				if i > 0 {
					p.line(0, "\n")
				}
				v.print(p, a.clock.Now())
				if err := p.writeTo(cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	addClaimNamespace(cmd, &s)
	a.addFlags(cmd, nil, nil)
	return cmd
}

// chosenClaims returns the selected claims. It reports on standard error if syncloop does not answer.
func (a *querier) chosenClaims(cmd *cobra.Command, s selection) ([]claimView, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	documents, err := a.listObjects(cmd.Context(), claims)
	if err != nil {
		return nil, err
	}
	response, err := a.listClaims(cmd.Context())
	held := response.GetClaims()
	away := err != nil
	if away {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "the status of the claims is not known: %v\n", err)
		if err != nil {
			return nil, err
		}
	}
	all, err := mergeClaims(documents, held, away)
	if err != nil {
		return nil, err
	}
	if len(s.names) == 0 {
		return slices.DeleteFunc(all, func(v claimView) bool { return !s.inNamespace(v.claim.Namespace) }), nil
	}
	var chosen []claimView
	for _, name := range s.names {
		before := len(chosen)
		for _, v := range all {
			if s.means(name, podName{namespace: v.claim.Namespace, name: v.claim.Name}) {
				chosen = append(chosen, v)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("there is no %s %q: 'quartet get %s' shows all", claims.word, name, claims.plural())
		}
	}
	return chosen, nil
}

func (a *querier) listClaims(ctx context.Context) (*enginev1.ListClaimsResponse, error) {
	return ask(ctx, a, layout.SyncLoop,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*enginev1.ListClaimsResponse, error) {
			return enginev1.NewEngineServiceClient(conn).ListClaims(ctx, &enginev1.ListClaimsRequest{})
		})
}

// mergeClaims returns the claims of configmux and syncloop, sorted. A claim that was deleted, and applied again while a
// pod used it, is there twice: the deleted one first.
func mergeClaims(documents []*configv1.ObjectSummary, held []*enginev1.Claim, away bool) ([]claimView, error) {
	var all []claimView
	for _, h := range held {
		v := claimView{claim: &v1.PersistentVolumeClaim{}, usedBy: h.GetUsedBy(), problem: h.GetProblem()}
		if err := v.claim.Unmarshal(h.GetClaim()); err != nil {
			return nil, fmt.Errorf("syncloop sent a claim that cannot be read: %w: do quartet and syncloop have the same version?", err)
		}
		var err error
		if v.pv, err = decodePV(h.GetPersistentVolume()); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	for _, d := range documents {
		claim := &v1.PersistentVolumeClaim{}
		if err := claim.Unmarshal(d.GetPersistentVolumeClaim()); err != nil {
			return nil, fmt.Errorf("configmux sent a claim that cannot be read: %w: do quartet and configmux have the same version?", err)
		}
		claim.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: claims.name}
		claim.CreationTimestamp = metav1.NewTime(d.GetCreatedAt().AsTime())
		i := slices.IndexFunc(all, func(v claimView) bool {
			return v.claim.UID == claim.UID && v.claim.DeletionTimestamp == nil
		})
		if i < 0 {
			all = append(all, claimView{claim: claim, source: d.GetSource(), path: d.GetPath(), isUnknown: away})
			continue
		}
		all[i].source, all[i].path = d.GetSource(), d.GetPath()
		all[i].claim.CreationTimestamp = claim.CreationTimestamp
	}
	slices.SortStableFunc(all, func(x, y claimView) int {
		return cmp.Or(cmp.Compare(x.claim.Namespace, y.claim.Namespace), cmp.Compare(x.claim.Name, y.claim.Name))
	})
	return all, nil
}

// claimsList returns how claims are printed. A single one is printed without a list around it.
func claimsList(single bool) list[claimView] {
	return list[claimView]{
		many: claims.many, columns: claimColumns, row: claimView.row,
		name: func(v claimView) string { return claims.word + "/" + v.claim.Name },
		whole: func(out io.Writer, output format, chosen []claimView) error {
			all := &v1.PersistentVolumeClaimList{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: claims.name + "List"}, Items: []v1.PersistentVolumeClaim{},
			}
			for _, v := range chosen {
				v.claim.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: claims.name}
				all.Items = append(all.Items, *v.claim)
			}
			if single && len(all.Items) == 1 {
				return printObject(out, output, &all.Items[0])
			}
			return printObject(out, output, all)
		},
	}
}

func (v claimView) row(now time.Time) []any {
	class, volumeMode := "", v1.PersistentVolumeFilesystem
	if v.claim.Spec.StorageClassName != nil {
		class = *v.claim.Spec.StorageClassName
	}
	if v.claim.Spec.VolumeMode != nil {
		volumeMode = *v.claim.Spec.VolumeMode
	}
	capacity, modes := "", ""
	if v.pv != nil {
		capacity, modes = v.claim.Status.Capacity.Storage().String(), shortModes(v.claim.Status.AccessModes)
	}
	return []any{
		title(v.claim.Namespace, v.claim.Name), v.phase(), v.claim.Spec.VolumeName, capacity, modes, class,
		age(v.claim.CreationTimestamp.Time, now), string(volumeMode), orNone(v.source), orNone(strings.Join(v.usedBy, ", ")),
	}
}

// shortModes returns access modes as kubectl abbreviates them.
func shortModes(modes []v1.PersistentVolumeAccessMode) string {
	var words []string
	for _, mode := range []struct {
		mode v1.PersistentVolumeAccessMode
		word string
	}{
		{v1.ReadWriteOnce, "RWO"}, {v1.ReadOnlyMany, "ROX"}, {v1.ReadWriteMany, "RWX"}, {v1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(modes, mode.mode) {
			words = append(words, mode.word)
		}
	}
	return strings.Join(words, ",")
}

// print prints the description on a page.
func (v claimView) print(p *page, now time.Time) {
	claim := v.claim
	p.field(0, "Name", claim.Name)
	p.field(0, "Namespace", claim.Namespace)
	p.field(0, "UID", string(claim.UID))
	status := v.phase()
	if at := claim.DeletionTimestamp; at != nil {
		status += fmt.Sprintf(" (lasts %s)", age(at.Time, now))
	}
	p.field(0, "Status", status)
	p.fieldIf(0, "Problem", oneLine(v.problem))
	source := orNone(v.source)
	if v.path != "" {
		source += ", in " + v.path
	}
	p.field(0, "Source", source)
	p.field(0, "Volume", orNone(claim.Spec.VolumeName))
	if v.pv != nil && v.pv.Spec.Local != nil {
		p.field(0, "Directory", v.pv.Spec.Local.Path)
	}
	p.fieldIf(0, "StorageClass", ptr.Deref(claim.Spec.StorageClassName, ""))
	if v.pv != nil && v.pv.Spec.CSI != nil {
		p.field(0, "Driver", v.pv.Spec.CSI.Driver)
		p.field(0, "VolumeHandle", v.pv.Spec.CSI.VolumeHandle)
		p.field(0, "Reclaim Policy", string(v.pv.Spec.PersistentVolumeReclaimPolicy))
	}
	p.field(0, "Labels", pairs(claim.Labels, "=")...)
	annotations := map[string]string{}
	for key, value := range claim.Annotations {
		if key != annotationSizeEnforced && key != annotationSizeNotEnforced {
			annotations[key] = value
		}
	}
	p.field(0, "Annotations", pairs(annotations, ": ")...)
	size := claim.Spec.Resources.Requests.Storage().String()
	if has := claim.Status.Capacity.Storage(); v.pv != nil && v.pv.Spec.CSI != nil && has.String() != size {
		size = has.String() + " (" + size + " is asked for)"
	}
	switch claim.Annotations[annotationSizeEnforced] {
	case "true":
		size += " (enforced by a project quota)"
	case "false":
		size += " (not enforced: " + cmp.Or(oneLine(claim.Annotations[annotationSizeNotEnforced]), "the reason is not known") + ")"
	}
	p.field(0, "Capacity", size)
	p.field(0, "Access Modes", orNone(shortModes(claim.Spec.AccessModes)))
	p.field(0, "Used By", v.usedBy...)
	p.field(0, "Created", formatTime(claim.CreationTimestamp))
}
