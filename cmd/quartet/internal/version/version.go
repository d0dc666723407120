// Package version says what was built from what.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// version is set by the linker; the Makefile takes it from git.
var version = "unknown"

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
		{"Quartet", version},
		{"Kubernetes API", moduleVersion("k8s.io/api")},
		{"CRI API", moduleVersion("k8s.io/cri-api")},
		{"Go", runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
	}
}

// moduleVersion is what a module was built as; a replaced one as what replaces it.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path != path {
			continue
		}
		if m.Replace != nil {
			return m.Replace.Version
		}
		return m.Version
	}
	return "not linked"
}
