package probecalls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	criclient "k8s.io/cri-client/pkg"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
	utilexec "k8s.io/utils/exec"

	"github.com/quartet-node/quartet/internal/cri"
)

// patience is how long after the timeout of a command the runtime may take to answer. It kills the command then, and
// waits for its end and for its output. With the three attempts it is about what a kubelet waits, two minutes.
const patience = 30 * time.Second

// errUnanswered is the error of an attempt to which the runtime has not answered.
var errUnanswered = errors.New("the runtime has not answered")

// exec runs a command in the container. The runtime kills it after the timeout, which is a failure. It fails with
// errUnanswered if the runtime does not answer even then: it may have lost the command, or hang as a whole.
func (c *Caller) exec(ctx context.Context, t Target) Answer {
	runtime, err := c.cfg.Runtime()
	if err != nil {
		return unknown(err)
	}
	command := t.Probe.Exec.Command
	// The client's log would contain the command, which may have secrets.
	bounded, cancel := context.WithTimeout(cri.Quiet(ctx), t.timeout()+patience)
	defer cancel()
	stdout, stderr, err := runtime.ExecSync(bounded, t.ContainerID, expand(command, t.Container.Env), t.timeout())
	output := cut(append(stdout, stderr...))
	var exit utilexec.CodeExitError
	switch {
	case err == nil:
		return success(output)
	case errors.As(err, &exit):
		return failure(output)
	case bounded.Err() != nil:
		return unknown(fmt.Errorf("command timed out: %q timed out after %s, and for %s more %w",
			strings.Join(command, " "), t.timeout(), patience, errUnanswered))
	case errors.Is(err, criclient.ErrCommandTimedOut):
		// The command in the pod's form, because references may resolve to secrets.
		return failure(fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(command, " "), t.timeout()))
	default:
		return unknown(err)
	}
}

// expand replaces $(NAME) by the value in the container's spec, and $$ by $. Values from other sources are empty here,
// as in the kubelet, because the probe does not have the container's environment.
func expand(command []string, env []v1.EnvVar) []string {
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.Name] = e.Value
	}
	out := make([]string, len(command))
	for i, word := range command {
		out[i] = expansion.Expand(word, func(name string) string {
			if value, ok := values[name]; ok {
				return value
			}
			return "$(" + name + ")"
		})
	}
	return out
}
