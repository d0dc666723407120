// Package applycmd implements the commands that change the applied pods, config maps and secrets: apply, delete and
// secrets. They read manifests and send them to configmux, which validates and stores them.
package applycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rpc"
)

const (
	// callTimeout bounds configmux's answer, for which it writes a file.
	callTimeout = 15 * time.Second
	// rotateTimeout bounds the rewriting of all files with secrets.
	rotateTimeout = 5 * time.Minute
)

// Commands returns apply, delete and secrets.
func Commands() []*cobra.Command {
	return []*cobra.Command{applyCommand(), deleteCommand(), secretsCommand()}
}

func applyCommand() *cobra.Command {
	var node target.Node
	var paths []string
	var dry dryRun
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-...",
		Short: "Run the pods of manifests, and keep their config maps, secrets and claims, until they are deleted",
		Long: "Run the pods of manifests until 'quartet delete' takes them away, across restarts of the node, and keep the config\n" +
			"maps, the secrets, these encrypted, the persistent volume claims, the storage classes and the CSIDrivers. A manifest is\n" +
			"YAML documents or JSON, each a Pod, a ConfigMap, a Secret, a PersistentVolumeClaim, a StorageClass, a CSIDriver or a\n" +
			"list of them (List, PodList and so on). Of a directory every .yaml, .yml and .json is read, in the order of names; '-' is the\n" +
			"standard input. An error in one does not prevent applying the others, and ends the command with 1. A node with an API\n" +
			"server takes its config maps, secrets and claims from there, and none by this command.",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return fmt.Errorf("%q is one too many: give each file a -f of its own, or name their directory", args[0])
			case len(paths) == 0:
				return errors.New("say what to apply: -f FILE, -f DIR or, for the standard input, -f -")
			}
			return withClient(&node, func(c client) error { return c.applyAll(cmd, paths, bool(dry)) })
		},
	}
	cmd.Flags().
		StringSliceVarP(&paths, "filename", "f", nil, "`FILE` or directory with the manifests, or - for the standard input; may be repeated")
	cmd.Flags().
		Var(&dry, "dry-run", "let configmux validate the manifests, and change nothing; 'server' and 'none' are accepted too")
	cmd.Flags().Lookup("dry-run").NoOptDefVal = "true"
	node.AddFlags(cmd.Flags())
	return cmd
}

func deleteCommand() *cobra.Command {
	var node target.Node
	var namespace string
	var paths []string
	cmd := &cobra.Command{
		Use:   "delete pod|configmap|secret|pvc|pv|storageclass|csidriver NAME... | delete KIND/NAME... | delete -f FILE|DIR|-...",
		Short: "Delete applied pods, config maps, secrets and claims",
		Long: "Delete applied pods, config maps, secrets, persistent volume claims, storage classes and CSIDrivers, by name, or by the\n" +
			"manifests that they were applied with, of which only the names are used. A pod may be named with or without the node's suffix, and NAME may be\n" +
			"NAMESPACE/NAME. What is of a manifest directory is deleted with its file, and not by this command.\n\n" +
			"The data of a deleted claim are removed when no pod uses it any more, unless its storage class retains them. A claim\n" +
			"whose storage class is deleted keeps its volume. A volume that was retained is forgotten by its name; it stays in the\n" +
			"storage system.",
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := namesOf(args, namespace, paths)
			if err != nil {
				return err
			}
			return withClient(&node, func(c client) error {
				if len(paths) > 0 {
					return c.removeAll(cmd, paths)
				}
				return eachName(cmd, names, func(n objectName) error { return c.remove(cmd.Context(), cmd.OutOrStdout(), n) })
			})
		},
	}
	cmd.Flags().
		StringSliceVarP(&paths, "filename", "f", nil, "`FILE` or directory with manifests of them, or - for the standard input; may be repeated")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of what is named; \"default\" without it")
	node.AddFlags(cmd.Flags())
	return cmd
}

// client calls the configmux of a node.
type client struct {
	configv1.ConfigServiceClient
	node *target.Node
	// address is that of configmux.
	address string
}

// withClient calls do with a client.
func withClient(node *target.Node, do func(client) error) (err error) {
	address, err := node.Address(layout.ConfigMux)
	if err != nil {
		return err
	}
	conn, err := node.Dial(layout.ConfigMux)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return do(client{configv1.NewConfigServiceClient(conn), node, address})
}

// applyAll applies the content of manifests.
func (c client) applyAll(cmd *cobra.Command, paths []string, dryRun bool) error {
	tried, err := eachItem(cmd, paths, "applied", func(i item) error {
		if i.err != nil {
			return i.err
		}
		if i.pod == nil {
			return c.applyObject(cmd.Context(), cmd.OutOrStdout(), i, dryRun)
		}
		if err := c.apply(cmd.Context(), cmd.OutOrStdout(), i.pod, dryRun); err != nil {
			return err
		}
		return printIgnored(cmd.ErrOrStderr(), i, i.pod)
	})
	if err == nil && tried == 0 {
		return errors.New("there is nothing to apply: the lists have no items")
	}
	return err
}

// removeAll deletes the content of manifests. Other problems in a manifest do not matter if the name is readable.
func (c client) removeAll(cmd *cobra.Command, paths []string) error {
	tried, err := eachItem(cmd, paths, "deleted", func(i item) error {
		switch {
		case i.name.name != "":
			return c.remove(cmd.Context(), cmd.OutOrStdout(), i.name)
		case i.err != nil:
			return i.err
		default:
			return errors.New("it has no metadata.name, so it cannot be deleted")
		}
	})
	if err == nil && tried == 0 {
		_, err = fmt.Fprintln(cmd.ErrOrStderr(), "there is nothing to delete: the lists have no items")
	}
	return err
}

// apply applies one pod, and prints the result.
func (c client) apply(ctx context.Context, out io.Writer, pod *v1.Pod, dryRun bool) error {
	data, err := pod.Marshal()
	if err != nil {
		return fmt.Errorf("encoding it: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.ApplyPod(ctx, &configv1.ApplyPodRequest{Pod: data, DryRun: dryRun})
	if err != nil {
		return c.explain(ctx, err)
	}
	stored := &v1.Pod{}
	if err := stored.Unmarshal(answer.GetPod().GetPod()); err != nil {
		return fmt.Errorf(
			"it was applied, and configmux's answer cannot be read: %w: is this command of the same version?",
			err,
		)
	}
	return printResult(out, objectName{podKind, stored.Namespace, stored.Name}, answer.GetPod().GetOp(), dryRun)
}

// printResult prints the result of an apply.
func printResult(out io.Writer, n objectName, op configv1.Op, dryRun bool) error {
	note := ""
	if dryRun {
		note = " (dry run)"
	}
	_, err := fmt.Fprintf(out, "%s %s%s\n", n, resultWord(op), note)
	return err
}

// applyObject applies a config map, a secret or a claim, and prints the result.
func (c client) applyObject(ctx context.Context, out io.Writer, i item, dryRun bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.ApplyObject(
		ctx,
		&configv1.ApplyObjectRequest{Kind: i.name.kind.inManifest(), Object: i.object, DryRun: dryRun},
	)
	if err != nil {
		return c.explainObject(ctx, err)
	}
	return printResult(out, objectName{i.name.kind, answer.GetNamespace(), answer.GetName()}, answer.GetOp(), dryRun)
}

// resultWord returns the result of an apply in the words of kubectl.
func resultWord(op configv1.Op) string {
	switch op { //nolint:exhaustive // an apply does nothing else
	case configv1.Op_OP_ADD:
		return "created"
	case configv1.Op_OP_UPDATE:
		return "configured"
	default:
		return "unchanged"
	}
}

// remove deletes one pod, config map, secret or claim.
func (c client) remove(ctx context.Context, out io.Writer, n objectName) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if n.kind == volumeKind {
		return c.forget(ctx, out, n)
	}
	if n.kind == podKind {
		if _, err := c.DeletePod(ctx, &configv1.DeletePodRequest{Namespace: n.namespace, Name: n.name}); err != nil {
			return c.explain(ctx, err)
		}
	} else if _, err := c.DeleteObject(ctx, &configv1.DeleteObjectRequest{Kind: n.kind.inManifest(),
		Namespace: n.namespace, Name: n.name}); err != nil {
		return c.explainObject(ctx, err)
	}
	_, err := fmt.Fprintf(out, "%s deleted\n", n)
	return err
}

// unreachableError is the error of an unreachable configmux, so that further calls are pointless.
type unreachableError struct{ text string }

func (e *unreachableError) Error() string { return e.text }

// explainObject is explain for calls about config maps, secrets and claims. A node that accepts none still accepts
// pods.
func (c client) explainObject(ctx context.Context, err error) error {
	if status.Code(err) == codes.Unimplemented {
		return errors.New(
			"this node does not accept config maps, secrets and claims: it has an API server, or replays a recording, or its configmux is of an older version",
		)
	}
	return c.explain(ctx, err)
}

// explain converts the error of a call to one for people.
func (c client) explain(ctx context.Context, err error) error {
	s := status.Convert(err)
	switch s.Code() { //nolint:exhaustive // the others say it themselves
	case codes.InvalidArgument:
		return invalid(s)
	case codes.Unimplemented:
		return &unreachableError{"this configmux does not accept pods: it replays a recording, or is of an older version"}
	case codes.DeadlineExceeded:
		return &unreachableError{
			"configmux did not answer in time, and may or may not have made the change: check its log, and try again",
		}
	case codes.Unavailable:
		if !strings.HasPrefix(s.Message(), "connection error") {
			return &unreachableError{"configmux: " + s.Message()}
		}
		if peertls.OnNetwork(c.address) {
			return &unreachableError{fmt.Sprintf("cannot reach configmux at %s: %s", c.address, s.Message())}
		}
		if err := rpc.CheckServer(ctx, c.address); err != nil {
			return &unreachableError{err.Error()}
		}
		up := "quartet up"
		if c.node.StateDir != "" && c.node.StateDir != layout.DefaultStateDir {
			up += " --state-dir " + c.node.StateDir
		}
		return &unreachableError{
			fmt.Sprintf(
				"cannot reach configmux at %s: run the command as root; is the node running? start it with '%s', or name its state directory with --state-dir or %s",
				c.address,
				up,
				target.EnvStateDir,
			),
		}
	default:
		return errors.New(s.Message())
	}
}

// invalid lists the invalid fields, one on a line, with aligned reasons.
func invalid(s *status.Status) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, detail := range s.Details() {
		bad, ok := detail.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			where := v.GetField()
			if where == "" {
				where = "it"
			}
			// Writing to a buffer does not fail.
			_, _ = fmt.Fprintf(table, "\n    %s\t%s", where, strings.Join(strings.Fields(v.GetDescription()), " "))
		}
	}
	if err := table.Flush(); err != nil || text.Len() == 0 {
		return errors.New(s.Message())
	}
	return errors.New("it is not valid:" + text.String())
}
