// Package applycmd is the commands that change what a node is to run: apply and delete. They read manifests, and give
// them to configmux, who validates them, keeps them and says what is wrong with them.
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
	"github.com/quartet-node/quartet/internal/rpc"
)

// callTimeout is how long configmux has to answer; it writes a file.
const callTimeout = 15 * time.Second

// Commands returns apply and delete.
func Commands() []*cobra.Command { return []*cobra.Command{applyCommand(), deleteCommand()} }

func applyCommand() *cobra.Command {
	var path, stateDir string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Run the pods of manifests until they are deleted",
		Long: "Run the pods of manifests until 'quartet delete' takes them away, through restarts of the node. A manifest is YAML\n" +
			"documents or JSON, each a Pod. Of a directory every .yaml, .yml and .json counts, in the order of names; '-' is the\n" +
			"standard input. What is wrong with a pod does not keep the others from being applied, and ends the command with 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return errors.New("say what to apply: -f FILE, -f DIR or, for the standard input, -f -")
			}
			return withClient(stateDir, func(c client) error {
				return eachPod(cmd, path, "applied", func(d document) error {
					if err := c.apply(cmd.Context(), cmd.OutOrStdout(), d.pod, dryRun); err != nil {
						return err
					}
					return tellIgnored(cmd.ErrOrStderr(), d, d.pod)
				})
			})
		},
	}
	cmd.Flags().StringVarP(&path, "filename", "f", "", "`FILE` or directory with the manifests, or - for the standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "let configmux validate the pods, and change nothing")
	target.AddFlag(cmd.Flags(), &stateDir)
	return cmd
}

func deleteCommand() *cobra.Command {
	var path, stateDir, namespace string
	cmd := &cobra.Command{
		Use:   "delete pod NAME... | delete -f FILE|DIR|-",
		Short: "Take away pods that were applied",
		Long: "Take away pods that were applied, by name, with or without the node's suffix, or by the manifests that they were\n" +
			"applied with. NAME may be NAMESPACE/NAME. A pod of a manifest directory goes away with its file, and not by this.",
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := namesOf(args, namespace, path)
			if err != nil {
				return err
			}
			return withClient(stateDir, func(c client) error {
				if path == "" {
					return eachName(cmd, names, func(n podName) error { return c.remove(cmd.Context(), cmd.OutOrStdout(), n) })
				}
				return eachPod(cmd, path, "deleted", func(d document) error {
					return c.remove(cmd.Context(), cmd.OutOrStdout(), podName{d.pod.Namespace, d.pod.Name})
				})
			})
		},
	}
	cmd.Flags().StringVarP(&path, "filename", "f", "", "`FILE` or directory with manifests of the pods, or - for the standard input")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of the pods that are named; \"default\" without it")
	target.AddFlag(cmd.Flags(), &stateDir)
	return cmd
}

// podName names a pod; without a namespace that is "default".
type podName struct{ namespace, name string }

// String is how people name the pod.
func (n podName) String() string {
	if n.namespace == "" || n.namespace == v1.NamespaceDefault {
		return "pod/" + n.name
	}
	return "pod/" + n.namespace + "/" + n.name
}

// namesOf returns the pods that the arguments of delete name.
func namesOf(args []string, namespace, path string) ([]podName, error) {
	switch {
	case path != "" && (len(args) > 0 || namespace != ""):
		return nil, errors.New("name the pods, or the manifests with -f, and not both")
	case path != "":
		return nil, nil
	case len(args) == 0:
		return nil, errors.New("say what to delete: pod NAME, or -f FILE")
	case args[0] != "pod" && args[0] != "pods":
		return nil, fmt.Errorf("there is no %q to delete: say delete pod NAME", args[0])
	case len(args) == 1:
		return nil, errors.New("name the pods to delete: delete pod NAME")
	}
	names := make([]podName, 0, len(args)-1)
	for _, arg := range args[1:] {
		n := podName{namespace, arg}
		if before, name, qualified := strings.Cut(arg, "/"); qualified {
			if namespace != "" && before != namespace {
				return nil, fmt.Errorf("%q is not in the namespace %q: leave out -n, or the namespace before the slash", arg, namespace)
			}
			n = podName{before, name}
		}
		names = append(names, n)
	}
	return names, nil
}

// client asks the configmux of a node.
type client struct {
	configv1.ConfigServiceClient
	address, stateDir string
}

// withClient does something with a client.
func withClient(stateDir string, do func(client) error) (err error) {
	addresses, err := target.SocketAddresses(stateDir)
	if err != nil {
		return err
	}
	conn, err := rpc.Dial(addresses.ConfigMux)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return do(client{configv1.NewConfigServiceClient(conn), addresses.ConfigMux, stateDir})
}

// apply applies one pod, and prints what became of it.
func (c client) apply(ctx context.Context, out io.Writer, pod *v1.Pod, dryRun bool) error {
	data, err := pod.Marshal()
	if err != nil {
		return fmt.Errorf("encoding it: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.ApplyPod(ctx, &configv1.ApplyPodRequest{Pod: data, DryRun: dryRun})
	if err != nil {
		return c.explain(err)
	}
	stored := &v1.Pod{}
	if err := stored.Unmarshal(answer.GetPod().GetPod()); err != nil {
		return fmt.Errorf("it was applied, and configmux's answer cannot be read: %w: is this command of the same version?", err)
	}
	note := ""
	if dryRun {
		note = " (dry run)"
	}
	_, err = fmt.Fprintf(out, "%s %s%s\n", podName{stored.Namespace, stored.Name}, became(answer.GetPod().GetOp()), note)
	return err
}

// became says what an apply did, in the words that users of Kubernetes know.
func became(op configv1.Op) string {
	switch op { //nolint:exhaustive // an apply does nothing else
	case configv1.Op_OP_ADD:
		return "created"
	case configv1.Op_OP_UPDATE:
		return "configured"
	default:
		return "unchanged"
	}
}

// remove deletes one pod.
func (c client) remove(ctx context.Context, out io.Writer, n podName) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := c.DeletePod(ctx, &configv1.DeletePodRequest{Namespace: n.namespace, Name: n.name}); err != nil {
		return c.explain(err)
	}
	_, err := fmt.Fprintf(out, "%s deleted\n", n)
	return err
}

// unreachableError says that there is nobody to ask, so that the other pods need not be tried.
type unreachableError struct{ text string }

func (e *unreachableError) Error() string { return e.text }

// explain turns the error of a call into one for people.
func (c client) explain(err error) error {
	s := status.Convert(err)
	switch s.Code() { //nolint:exhaustive // the others say it themselves
	case codes.InvalidArgument:
		return invalid(s)
	case codes.Unimplemented:
		return &unreachableError{"this configmux takes no pods: it replays a recording, or is of an older version"}
	case codes.DeadlineExceeded:
		return &unreachableError{fmt.Sprintf("configmux did not answer within %s, and may have done it or not: see its log, and try again", callTimeout)}
	case codes.Unavailable:
		if !strings.HasPrefix(s.Message(), "connection error") {
			return &unreachableError{"configmux: " + s.Message()}
		}
		up := "quartet up"
		if c.stateDir != "" && c.stateDir != layout.DefaultStateDir {
			up += " --state-dir " + c.stateDir
		}
		return &unreachableError{fmt.Sprintf("cannot reach configmux at %s: run the command as root; is the node running? start it with '%s', or name its state directory with --state-dir or %s",
			c.address, up, target.EnvStateDir)}
	default:
		return errors.New(s.Message())
	}
}

// invalid lists the fields that are wrong, one on a line, the reasons below each other.
func invalid(s *status.Status) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, detail := range s.Details() {
		bad, is := detail.(*errdetails.BadRequest)
		if !is {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			where := v.GetField()
			if where == "" {
				where = "the pod"
			}
			// The writer is a buffer, which takes everything.
			_, _ = fmt.Fprintf(table, "\n    %s\t%s", where, strings.Join(strings.Fields(v.GetDescription()), " "))
		}
	}
	if err := table.Flush(); err != nil || text.Len() == 0 {
		return errors.New(s.Message())
	}
	return errors.New("it is not valid:" + text.String())
}
