package probecalls

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	criclient "k8s.io/cri-client/pkg"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
	utilexec "k8s.io/utils/exec"

	"github.com/quartet-node/quartet/internal/cri"
)

// exec runs a command in the container. The runtime kills it after the timeout, which is a failure.
func (c *Caller) exec(ctx context.Context, t Target) Answer {
	runtime, err := c.cfg.Runtime()
	if err != nil {
		return unknown(err)
	}
	command := t.Probe.Exec.Command
	// The client's log would contain the command, which may have secrets.
	stdout, stderr, err := runtime.ExecSync(cri.Quiet(ctx), t.ContainerID, expand(command, t.Container.Env), t.timeout())
	output := cut(append(stdout, stderr...))
	var exit utilexec.CodeExitError
	switch {
	case err == nil:
		return success(output)
	case errors.As(err, &exit):
		return failure(output)
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
