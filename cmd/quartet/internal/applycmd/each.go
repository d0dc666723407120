package applycmd

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// eachItem calls do for each item of the manifests, and prints errors. It returns the number of items.
func eachItem(cmd *cobra.Command, paths []string, done string, do func(item) error) (tried int, err error) {
	t := tally{cmd: cmd}
	err = items(paths, cmd.InOrStdin(), func(i item) error { return t.count(i.String(), do(i)) })
	if err != nil {
		return t.tried, err
	}
	return t.tried, t.result(done)
}

// eachName calls do for each name, and prints errors.
func eachName(cmd *cobra.Command, names []objectName, do func(objectName) error) error {
	t := tally{cmd: cmd}
	for _, n := range names {
		if err := t.count(n.String(), do(n)); err != nil {
			return err
		}
	}
	return t.result("deleted")
}

// tally counts errors.
type tally struct {
	cmd           *cobra.Command
	tried, failed int
}

// count counts one result. Its error ends the command, because further calls are pointless.
func (t *tally) count(object string, err error) error {
	t.tried++
	var unreachable *unreachableError
	if errors.As(err, &unreachable) {
		return err
	}
	if err == nil {
		return nil
	}
	t.failed++
	_, err = fmt.Fprintf(t.cmd.ErrOrStderr(), "%s: %v\n", object, err)
	return err
}

func (t *tally) result(done string) error {
	if t.failed > 0 {
		return fmt.Errorf("%d of %d could not be %s: see above", t.failed, t.tried, done)
	}
	return nil
}
