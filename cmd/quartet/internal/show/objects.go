package show

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// objectKind is a kind of objects in configmux on a node without an API server.
type objectKind struct {
	// name is the name in configmux, word the one on the command line, many the plural, and short kubectl's name of it.
	name, word, many, short string
}

// plural returns the word on the command line for all objects of the kind.
func (kind objectKind) plural() string {
	if strings.HasSuffix(kind.word, "s") {
		return kind.word + "es"
	}
	return kind.word + "s"
}

var (
	configMaps = objectKind{"ConfigMap", "configmap", "config maps", "configmaps"}
	secrets    = objectKind{"Secret", "secret", "secrets", "secrets"}
)

var configMapColumns = []column{
	{
		name: "Name",
	},
	{name: "Data"},
	{name: "Age"},
	{name: "Immutable", wide: true},
	{name: "Source", wide: true},
	{name: "Keys", wide: true},
}

var secretColumns = []column{
	{
		name: "Name",
	},
	{name: "Type"},
	{name: "Data"},
	{name: "Age"},
	{name: "Immutable", wide: true},
	{name: "Source", wide: true},
	{name: "Keys", wide: true},
}

func (a *querier) configMapsCommand() *cobra.Command {
	return a.objectsCommand(configMaps, &cobra.Command{
		Use:     "configmaps [NAME...]",
		Aliases: []string{"configmap", "cm"},
		Short:   "Show the config maps of a node without an API server",
		Long: "Show the config maps that this node holds: from its manifests, and those that were applied. A node with an API server\n" +
			"has none of its own.",
		Example: "  quartet get configmaps\n  quartet get configmaps settings -o yaml",
	})
}

func (a *querier) secretsCommand() *cobra.Command {
	return a.objectsCommand(secrets, &cobra.Command{
		Use:     "secrets [NAME...]",
		Aliases: []string{"secret"},
		Short:   "Show which secrets a node without an API server has, without their values",
		Long: "Show which secrets this node holds, from its manifests and those that were applied: names, types, keys and how many\n" +
			"bytes each value has. Values are not shown in any format.",
		Example: "  quartet get secrets\n  quartet get secrets login -o yaml",
	})
}

// objectsCommand completes the command of a kind.
func (a *querier) objectsCommand(kind objectKind, cmd *cobra.Command) *cobra.Command {
	var output format
	var s selection
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.names = args
		if err := s.check(); err != nil {
			return err
		}
		all, err := a.listObjects(cmd.Context(), kind)
		if err != nil {
			return err
		}
		chosen, err := s.chooseObjects(kind, all)
		if err != nil {
			return err
		}
		return kind.listOf(len(s.names) == 1).show(cmd, output, s, a.clock.Now(), chosen)
	}
	cmd.Flags().
		StringVarP(&s.namespace, "namespace", "n", "", "`NAMESPACE` of the "+kind.many+"; without it they are named by NAMESPACE/NAME, or by NAME in \"default\"")
	a.addFlags(cmd, &output, nil)
	return cmd
}

// listObjects returns the objects of a kind. On a node that has none of its own, the error says how to see those of its
// cluster.
func (a *querier) listObjects(ctx context.Context, kind objectKind) ([]*configv1.ObjectSummary, error) {
	elsewhere := false
	response, err := ask(
		ctx,
		a,
		layout.ConfigMux,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*configv1.ListObjectsResponse, error) {
			response, err := configv1.NewConfigServiceClient(conn).ListObjects(ctx,
				&configv1.ListObjectsRequest{Kind: kind.name})
			elsewhere = status.Code(err) == codes.Unimplemented
			return response, err
		},
	)
	if elsewhere {
		return nil, fmt.Errorf("%w; 'kubectl get %s' shows the %s of a cluster", err, kind.short, kind.many)
	}
	return response.GetObjects(), err
}

// chooseObjects returns the selected objects in the order of the arguments.
func (s selection) chooseObjects(kind objectKind, all []*configv1.ObjectSummary) ([]*configv1.ObjectSummary, error) {
	if len(s.names) == 0 {
		return slices.DeleteFunc(all, func(o *configv1.ObjectSummary) bool { return !s.inNamespace(o.GetNamespace()) }), nil
	}
	chosen := make([]*configv1.ObjectSummary, 0, len(s.names))
	for _, name := range s.names {
		i := slices.IndexFunc(all, func(o *configv1.ObjectSummary) bool {
			return s.means(name, podName{namespace: o.GetNamespace(), name: o.GetName()})
		})
		if i < 0 {
			return nil, fmt.Errorf("there is no %s %q: 'quartet get %s' shows all", kind.word, name, kind.plural())
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// listOf returns how the objects of a kind are printed. A single one is printed without a list around it.
func (kind objectKind) listOf(single bool) list[*configv1.ObjectSummary] {
	l := list[*configv1.ObjectSummary]{
		many: kind.many, columns: configMapColumns,
		name: func(o *configv1.ObjectSummary) string { return kind.word + "/" + o.GetName() },
		row:  func(o *configv1.ObjectSummary, now time.Time) []any { return objectRow(kind, o, now) },
		whole: func(out io.Writer, output format, objects []*configv1.ObjectSummary) error {
			return printConfigMaps(out, output, objects, single)
		},
	}
	if kind == secrets {
		l.columns = secretColumns
		l.whole = func(out io.Writer, output format, objects []*configv1.ObjectSummary) error {
			// They are printed as in configmux's response: an object of Kubernetes would seem to have empty values.
			return printWith(protojson.MarshalOptions{}, out, output, &configv1.ListObjectsResponse{Objects: objects})
		}
	}
	return l
}

func objectRow(kind objectKind, o *configv1.ObjectSummary, now time.Time) []any {
	row := []any{title(o.GetNamespace(), o.GetName())}
	if kind == secrets {
		row = append(row, orNone(o.GetType()))
	}
	keys := make([]string, 0, len(o.GetKeys()))
	for _, key := range o.GetKeys() {
		keys = append(keys, fmt.Sprintf("%s (%d bytes)", key.GetName(), key.GetBytes()))
	}
	return append(
		row,
		fmt.Sprint(len(keys)),
		age(o.GetCreatedAt().AsTime(), now),
		yesNo(o.GetImmutable()),
		o.GetSource(),
		orNone(strings.Join(keys, ", ")),
	)
}

// printConfigMaps prints config maps as objects of Kubernetes.
func printConfigMaps(out io.Writer, output format, objects []*configv1.ObjectSummary, single bool) error {
	list := &v1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, Items: []v1.ConfigMap{}}
	for _, o := range objects {
		config := v1.ConfigMap{}
		if err := config.Unmarshal(o.GetConfigMap()); err != nil {
			return fmt.Errorf(
				"configmux sent a config map that cannot be read: %w: do quartet and configmux have the same version?",
				err,
			)
		}
		config.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
		config.CreationTimestamp = metav1.NewTime(o.GetCreatedAt().AsTime())
		list.Items = append(list.Items, config)
	}
	if single {
		return printObject(out, output, &list.Items[0])
	}
	return printObject(out, output, list)
}
