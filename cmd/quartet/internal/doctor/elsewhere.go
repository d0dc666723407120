package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/nodeprocess"
	"github.com/quartet-node/quartet/internal/peertls"
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
