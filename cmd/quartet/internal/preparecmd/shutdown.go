package preparecmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/logind"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// logindPatience bounds the wait for logind, because the unit of nodestatus waits for this command.
const logindPatience = 10 * time.Second

// lengthen has logind wait with a shutdown as long as a configuration gives to pods, by a drop-in file. What prevents
// it is printed and is no failure: nodestatus, which is started next, has it in its health.
func lengthen(ctx context.Context, config, dropIn string, out io.Writer) {
	cfg, err := nodeconfig.Parse(layout.NodeStatus, []string{"--config=" + config}, io.Discard)
	if err != nil {
		fmt.Fprintf(out, "the delay of a shutdown is not known: %v\n", err)
		return
	}
	needed := nodeconfig.ShutdownDelay(&cfg.Kubelet)
	if needed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, logindPatience)
	defer cancel()
	extended, problem, err := askLogind(ctx, dropIn, needed)
	switch {
	case err != nil:
		fmt.Fprintf(out, "logind may not wait %v with a shutdown: %v\n", needed, err)
	case problem != "":
		fmt.Fprintln(out, problem)
	case extended:
		fmt.Fprintf(out, "logind waits %v with a shutdown, by %s\n", needed, dropIn)
	}
}

// askLogind is logind.Lengthen with the logind of the system's D-Bus.
func askLogind(ctx context.Context, dropIn string, needed time.Duration) (extended bool, problem string, err error) {
	conn, err := logind.Connect(ctx, "")
	if err != nil {
		return false, "", err
	}
	defer conn.Close() //nolint:errcheck // nothing was sent after the last answer
	return logind.Lengthen(ctx, conn, dropIn, needed)
}
