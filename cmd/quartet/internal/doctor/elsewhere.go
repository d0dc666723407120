package doctor

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/nodeprocess"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rpc"
)

// networkPatience is how long a configmux on another machine may take to answer: less than the whole check, so that the
// finding has the reason.
const networkPatience = checkTimeout - time.Second

// elsewhere returns the configmux on another machine that the node's syncloop follows. The node then has none.
func (p *patient) elsewhere(service layout.Service) (nodeprocess.Configmux, bool) {
	if service != layout.ConfigMux {
		return nodeprocess.Configmux{}, false
	}
	return target.ConfigmuxElsewhere(p.layout.StateDir())
}

// checkElsewhere reports whether the configmux on another machine serves this node, asked as syncloop asks it.
func (p *patient) checkElsewhere(ctx context.Context, at nodeprocess.Configmux) []machine.Finding {
	f := machine.Ok(string(layout.ConfigMux), "the configmux at %s, which is not of this machine, serves this node", at.Address)
	if _, err := peertls.Open(at.Files); err != nil {
		return []machine.Finding{f.With(
			machine.Warning,
			fmt.Sprintf("the configmux at %s cannot be asked with the certificate of syncloop: %v", at.Address, err),
			"run the command as root; if the file is not there, name the right one in the flags of syncloop",
		)}
	}
	facts := serviceFacts{service: layout.ConfigMux}
	if err := p.askElsewhere(ctx, &facts); err != nil {
		return []machine.Finding{f.With(
			machine.Fault,
			fmt.Sprintf("the configmux at %s does not serve this node: %s", at.Address, callError(err)),
			"until it does, pods stay as they are: look at the network, and at the log of that configmux",
		)}
	}
	if findings := p.judgeNotes(f, facts); len(findings) > 0 {
		return findings
	}
	return []machine.Finding{f}
}

func (p *patient) askElsewhere(ctx context.Context, facts *serviceFacts) error {
	ctx, cancel := context.WithTimeout(ctx, networkPatience)
	defer cancel()
	node := target.Node{StateDir: p.layout.StateDir()}
	conn, err := node.Connect(ctx, layout.ConfigMux)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written to it
	askMore(ctx, conn, facts)
	return facts.healthErr
}

// judgeNoConfigmux evaluates that there is no configmux on this machine, although the command line of syncloop does not
// name one elsewhere: it may be in a container, so that it cannot be read. syncloop says whether it follows one.
func (p *patient) judgeNoConfigmux(ctx context.Context, facts serviceFacts) []machine.Finding {
	if p.followsConfigmux(ctx) {
		return []machine.Finding{machine.Ok(
			string(layout.ConfigMux), "none at %s: syncloop follows one that is not of this machine", facts.socket,
		)}
	}
	findings := p.judgeService(facts)
	for i := range findings {
		findings[i].Fix += "; if the pods come from elsewhere, look at --configmux-address of syncloop and at its log"
	}
	return findings
}

// followsConfigmux reports whether syncloop is connected to a configmux.
func (p *patient) followsConfigmux(ctx context.Context) bool {
	conn, err := rpc.Dial(p.layout.Address(layout.SyncLoop))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }() // nothing was written to it
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{
		Service: string(layout.ConfigMux),
	})
	return err == nil && answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}
