// Package version implements the command that prints the versions of the build.
package version

import (
	"fmt"
	"runtime"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quartet-node/quartet/internal/buildinfo"
)

// Command is `quartet version`.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Quartet, of Kubernetes' libraries and of Go",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, row := range rows() {
				if _, err := fmt.Fprintf(w, "%s\t%s\n", row[0], row[1]); err != nil {
					return err
				}
			}
			return w.Flush()
		},
	}
}

func rows() [][2]string {
	return [][2]string{
		{"Quartet", buildinfo.Version()},
		{"Kubernetes API", moduleVersion("k8s.io/api")},
		{"CRI API", moduleVersion("k8s.io/cri-api")},
		{"Go", runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
	}
}

// moduleVersion returns the version of a module in words for people.
func moduleVersion(path string) string {
	if version := buildinfo.Module(path); version != "" {
		return version
	}
	return "not linked"
}
