// Package evictcmd implements `quartet evict`, which ends a pod by syncloop's EvictPod.
package evictcmd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// callTimeout bounds the call, which returns when the eviction has begun.
	callTimeout = 30 * time.Second
	// ownGracePeriod has each pod end within its own grace period.
	ownGracePeriod = -1
)

// word is a reason of a pod's status.
var word = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

// options holds the flags.
type options struct {
	node                       target.Node
	namespace, reason, message string
	gracePeriod                int64
}

// Command is `quartet evict`.
func Command() *cobra.Command {
	var opts options
	cmd := &cobra.Command{
		Use:   "evict POD",
		Short: "End a pod as Failed; it is not started again",
		Long: "End a pod with the phase Failed, a reason and a message. Its containers get their grace period. It is not started\n" +
			"again while its source names it, also after a restart of the node. A controller of a cluster replaces it, possibly\n" +
			"on another node. A disruption budget is not asked for: for that, use the API server.\n\n" +
			"A pod is named by NAME as in its manifest or with the node's suffix, by NAMESPACE/NAME, or by its UID.",
		Example: "  quartet evict hello\n  quartet evict shop/web --grace-period 5 --message 'the disk is replaced'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one pod: " + cmd.CommandPath() + " POD; 'quartet get pods' lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return opts.evict(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&opts.namespace, "namespace", "n", "", "`NAMESPACE` of the pod; default without it")
	flags.StringVar(&opts.reason, "reason", "Evicted", "`REASON` in the pod's status, one word in CamelCase")
	flags.StringVar(&opts.message, "message", "The pod was evicted by an administrator of the node.",
		"`MESSAGE` in the pod's status")
	flags.Int64Var(&opts.gracePeriod, "grace-period", ownGracePeriod,
		"`SECONDS` until its containers are killed; -1 is the pod's own grace period")
	opts.node.AddFlags(flags)
	return cmd
}

func (o *options) evict(cmd *cobra.Command, name string) (err error) {
	if !word.MatchString(o.reason) {
		return fmt.Errorf("--reason: %q must be one word in CamelCase, such as Evicted", o.reason)
	}
	if o.gracePeriod < ownGracePeriod {
		return fmt.Errorf("--grace-period: %d must be -1 or more", o.gracePeriod)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), callTimeout)
	defer cancel()
	pod, err := show.Locate(ctx, o.node, o.namespace, name)
	if err != nil {
		return err
	}
	conn, err := o.node.Connect(ctx, layout.SyncLoop)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := enginev1.NewEngineServiceClient(conn).EvictPod(ctx, &enginev1.EvictPodRequest{
		PodUid: pod.UID, Reason: o.reason, Message: o.message, GracePeriodSeconds: o.gracePeriod,
	}); err != nil {
		return fmt.Errorf("syncloop: %s", status.Convert(err).Message())
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "pod/%s is being evicted: 'quartet get pods -w' shows its end\n", pod.Name)
	return err
}
