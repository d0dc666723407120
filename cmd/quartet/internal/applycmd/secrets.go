package applycmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

func secretsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets rotate-key",
		Short: "Replace the key of this node's secrets",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("say what to do: " + cmd.CommandPath() + " rotate-key; to see the secrets, 'quartet get secrets'")
			}
			return fmt.Errorf(
				"there is no %q: %s rotate-key encrypts the secrets with a new key; to see them, 'quartet get secrets'",
				args[0],
				cmd.CommandPath(),
			)
		},
		// Args refuses a call without arguments. Without RunE, cobra would print its help and succeed.
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(rotateCommand())
	return cmd
}

func rotateCommand() *cobra.Command {
	var node target.Node
	cmd := &cobra.Command{
		Use:   "rotate-key",
		Short: "Encrypt all secrets on disk with a new key, and remove the old one",
		Long: "Encrypt all secrets on configmux's disk with a new key, and remove the old one. Pods are not affected. If\n" +
			"it fails or is interrupted, nothing is lost: the next call, or the next start of configmux, continues. Make a new\n" +
			"backup of the key file afterwards: it is secrets.key in the state directory.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withClient(&node, func(c client) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), rotateTimeout)
				defer cancel()
				answer, err := c.RotateSecretsKey(ctx, &configv1.RotateSecretsKeyRequest{})
				if err != nil {
					return c.explainObject(ctx, err)
				}
				if answer.GetKey() == "" {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), "There is no key yet: the first secret creates one.")
					return err
				}
				_, err = fmt.Fprintf(
					cmd.OutOrStdout(),
					"The key is %s now, and the old one is removed; files encrypted again: %d\n",
					answer.GetKey(),
					answer.GetFiles(),
				)
				return err
			})
		},
	}
	node.AddFlags(cmd.Flags())
	return cmd
}
