package show

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

// The kinds of storage, whose objects have no namespace.
var (
	classes = objectKind{"StorageClass", "storageclass", "storage classes", "sc"}
	drivers = objectKind{"CSIDriver", "csidriver", "CSIDrivers", "csidrivers"}
)

var classColumns = []column{
	{name: "Name"},
	{name: "Provisioner"},
	{name: "ReclaimPolicy"},
	{name: "VolumeBindingMode"},
	{name: "AllowVolumeExpansion"},
	{name: "Age"},
	{name: "Source", wide: true},
}

var driverColumns = []column{
	{name: "Name"},
	{name: "AttachRequired"},
	{name: "PodInfoOnMount"},
	{name: "FSGroupPolicy"},
	{name: "Modes"},
	{name: "Age"},
	{name: "Source", wide: true},
}

// storageObject is a storage class or a CSIDriver with what configmux knows about it.
type storageObject struct {
	summary *configv1.ObjectSummary
	object  runtime.Object
	row     []any
}

func (a *querier) classesCommand() *cobra.Command {
	return a.storageCommand(classes, classColumns, &cobra.Command{
		Use:     "storageclasses [NAME...]",
		Aliases: []string{"storageclass", "sc"},
		Short:   "Show the storage classes of a node without an API server",
		Long: "Show the storage classes that this node holds: from its manifests, and those that were applied. A node with an API\n" +
			"server has none of its own.",
		Example: "  quartet get sc\n  quartet get sc fast -o yaml",
	})
}

func (a *querier) driversCommand() *cobra.Command {
	return a.storageCommand(drivers, driverColumns, &cobra.Command{
		Use:     "csidrivers [NAME...]",
		Aliases: []string{"csidriver"},
		Short:   "Show the CSIDrivers of a node without an API server",
		Long: "Show the CSIDrivers that this node holds: from its manifests, and those that were applied. A CSIDriver says how the\n" +
			"volumes of a CSI driver are used. A driver can run without one. A node with an API server has none of its own.",
		Example: "  quartet get csidrivers\n  quartet get csidrivers dirs.example.com -o yaml",
	})
}

// storageCommand completes the command of a kind without namespaces.
func (a *querier) storageCommand(kind objectKind, columns []column, cmd *cobra.Command) *cobra.Command {
	var output format
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		all, err := a.chosenStorage(cmd, kind, args)
		if err != nil {
			return err
		}
		if output.isTable() && len(all) == 0 {
			_, err := fmt.Fprintf(cmd.ErrOrStderr(), "There are no %s.\n", kind.many)
			return err
		}
		return printStorage(cmd.OutOrStdout(), output, kind, columns, all, len(args) == 1)
	}
	a.addFlags(cmd, &output, nil)
	return cmd
}

// chosenStorage returns the objects with some names, in the order of the names; all without names.
func (a *querier) chosenStorage(cmd *cobra.Command, kind objectKind, names []string) ([]storageObject, error) {
	summaries, err := a.listObjects(cmd.Context(), kind)
	if err != nil {
		return nil, err
	}
	all := make([]storageObject, 0, len(summaries))
	for _, summary := range summaries {
		one, err := a.decodeStorage(summary)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	if len(names) == 0 {
		return all, nil
	}
	var chosen []storageObject
	for _, name := range names {
		i := slices.IndexFunc(all, func(o storageObject) bool { return o.summary.GetName() == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no %s %q: 'quartet get %s' shows all", kind.word, name, kind.plural())
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// decodeStorage decodes an object.
func (a *querier) decodeStorage(summary *configv1.ObjectSummary) (storageObject, error) {
	one := storageObject{summary: summary}
	created := summary.GetCreatedAt().AsTime()
	types := metav1.TypeMeta{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: summary.GetKind()}
	var err error
	if summary.GetKind() == classes.name {
		class := &storagev1.StorageClass{}
		err = class.Unmarshal(summary.GetStorageClass())
		class.TypeMeta, class.CreationTimestamp = types, metav1.NewTime(created)
		one.object = class
		one.row = []any{
			class.Name, class.Provisioner, string(ptr.Deref(class.ReclaimPolicy, v1.PersistentVolumeReclaimDelete)),
			string(ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate)),
			fmt.Sprint(ptr.Deref(class.AllowVolumeExpansion, false)),
		}
	} else {
		driver := &storagev1.CSIDriver{}
		err = driver.Unmarshal(summary.GetCsiDriver())
		driver.TypeMeta, driver.CreationTimestamp = types, metav1.NewTime(created)
		one.object = driver
		modes := make([]string, 0, len(driver.Spec.VolumeLifecycleModes))
		for _, mode := range driver.Spec.VolumeLifecycleModes {
			modes = append(modes, string(mode))
		}
		one.row = []any{
			driver.Name, fmt.Sprint(ptr.Deref(driver.Spec.AttachRequired, true)),
			fmt.Sprint(ptr.Deref(driver.Spec.PodInfoOnMount, false)),
			string(ptr.Deref(driver.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)),
			strings.Join(modes, ","),
		}
	}
	if err != nil {
		return one, fmt.Errorf("configmux sent a %s that cannot be read: %w: do quartet and configmux have the same version?",
			summary.GetKind(), err)
	}
	one.row = append(one.row, age(created, a.clock.Now()), orNone(summary.GetSource()))
	return one, nil
}

func printStorage(
	out io.Writer, output format, kind objectKind, columns []column, all []storageObject, single bool,
) error {
	var rows [][]any
	var objects []runtime.Object
	for _, one := range all {
		rows, objects = append(rows, one.row), append(objects, one.object)
	}
	switch {
	case output.isTable():
		return newTable(out, output, columns, false).print(rows...)
	case output == formatName:
		for _, one := range all {
			if _, err := fmt.Fprintf(out, "%s/%s\n", kind.word, one.summary.GetName()); err != nil {
				return err
			}
		}
		return nil
	case single:
		return printObject(out, output, objects[0])
	}
	return printObject(out, output, listOf(objects))
}

// listOf returns a list of objects as kubectl prints one.
func listOf(objects []runtime.Object) *v1.List {
	list := &v1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []runtime.RawExtension{}}
	for _, object := range objects {
		list.Items = append(list.Items, runtime.RawExtension{Object: object})
	}
	return list
}

func (a *querier) describeClassCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "storageclass [NAME...]",
		Aliases: []string{"storageclasses", "sc"},
		Short:   "Show everything that the node knows about a storage class",
		Long: "Show everything that the node knows about a storage class: its document, and the claims that name it. Without a name\n" +
			"all storage classes are described.",
		Example: "  quartet describe sc fast",
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, err := a.chosenStorage(cmd, classes, args)
			if err != nil {
				return err
			}
			if len(chosen) == 0 {
				_, err := fmt.Fprintf(cmd.ErrOrStderr(), "There are no %s.\n", classes.many)
				return err
			}
			claims, err := a.chosenClaims(cmd, selection{})
			if err != nil {
				return err
			}
			for i, one := range chosen {
				p := newPage()
				if i > 0 {
					p.line(0, "\n")
				}
				printClass(p, one, claims)
				if err := p.writeTo(cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	a.addFlags(cmd, nil, nil)
	return cmd
}

// printClass prints the description of a storage class on a page.
func printClass(p *page, one storageObject, claims []claimView) {
	class, is := one.object.(*storagev1.StorageClass)
	if !is {
		return
	}
	p.field(0, "Name", class.Name)
	source := orNone(one.summary.GetSource())
	if path := one.summary.GetPath(); path != "" {
		source += ", in " + path
	}
	p.field(0, "Source", source)
	p.field(0, "Provisioner", class.Provisioner)
	p.field(0, "Parameters", pairs(class.Parameters, "=")...)
	p.field(0, "AllowVolumeExpansion", fmt.Sprint(ptr.Deref(class.AllowVolumeExpansion, false)))
	p.field(0, "MountOptions", class.MountOptions...)
	p.field(0, "ReclaimPolicy", string(ptr.Deref(class.ReclaimPolicy, v1.PersistentVolumeReclaimDelete)))
	p.field(0, "VolumeBindingMode", string(ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate)))
	var users []string
	for _, v := range claims {
		if ptr.Deref(v.claim.Spec.StorageClassName, "") == class.Name {
			users = append(users, v.claim.Namespace+"/"+v.claim.Name+" ("+v.phase()+")")
		}
	}
	p.field(0, "Claims", users...)
	p.field(0, "Created", formatTime(class.CreationTimestamp))
}
