package nodeconfig

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeprocess"
	"github.com/quartet-node/quartet/internal/peertls"
)

// DefaultShadowWait is the default of Shadow.Wait: longer than the start of a sandbox on a busy machine.
const DefaultShadowWait = 10 * time.Second

// Shadow has the settings of a syncloop that follows a node and does nothing.
type Shadow struct {
	// On is true for such a syncloop.
	On bool
	// JSON prints differences as JSON.
	JSON bool
	// For is how long to follow; 0 is until a signal.
	For time.Duration
	// Wait is how long a difference must last before it is printed.
	Wait time.Duration
}

// shadowFlags holds the flags of a shadow as given.
type shadowFlags struct {
	on           bool
	output       string
	wait, length time.Duration
}

func (f *shadowFlags) add(set *pflag.FlagSet) {
	set.BoolVar(&f.on, "shadow", false,
		"follow the node of --state-dir and its syncloop, change nothing, serve nothing, and print what this one would do differently")
	set.StringVarP(&f.output, "shadow-output", "o", "text", "`FORMAT` of what --shadow prints: text or json")
	set.DurationVar(&f.length, "shadow-for", 0, "`TIME` after which --shadow ends (default: at Ctrl-C)")
	set.DurationVar(&f.wait, "shadow-wait", DefaultShadowWait, "`TIME` that a difference must last before --shadow prints it")
}

// shadowed sets the shadow. Its addresses are those of the node of the state directory, unless they are given.
func (f *flags) shadowed(cfg *Config, fail failure) {
	s := f.shadow
	for _, flag := range []string{"shadow-output", "shadow-for", "shadow-wait"} {
		if f.given(flag) && !s.on {
			fail(flag, "is for --shadow: add that, or leave this out")
		}
	}
	if s.output != "text" && s.output != "json" {
		fail("shadow-output", "%q: must be text or json", s.output)
	}
	if s.length < 0 {
		fail("shadow-for", "%v: must be 0 or more, for example 10m", s.length)
	}
	if s.wait < time.Second {
		fail("shadow-wait", "%v: must be 1s or more", s.wait)
	}
	cfg.Shadow = Shadow{On: s.on, JSON: s.output == "json", For: s.length, Wait: s.wait}
	if !s.on {
		return
	}
	node, err := layout.New(f.stateDir)
	if err != nil {
		fail("state-dir", "%w", err)
		return
	}
	for peer, address := range map[Service]*string{
		ConfigMux: &cfg.Peers.ConfigMux, PLEG: &cfg.Peers.PLEG, SyncLoop: &cfg.Peers.SyncLoop,
		NodeStatus: &cfg.Peers.NodeStatus,
	} {
		if !f.given(string(peer) + "-address") {
			*address = "unix://" + node.Socket(peer)
		}
	}
	f.followSite(cfg)
}

// followSite sets the configmux elsewhere that the syncloop of the state directory follows, with its files of TLS,
// unless flags name others.
func (f *flags) followSite(cfg *Config) {
	elsewhere, found := nodeprocess.ConfigmuxElsewhere(f.stateDir)
	if !found || f.given(string(ConfigMux)+"-address") {
		return
	}
	cfg.Peers.ConfigMux = elsewhere.Address
	if cfg.TLS == (peertls.Files{}) {
		cfg.TLS = elsewhere.Files
	}
}
