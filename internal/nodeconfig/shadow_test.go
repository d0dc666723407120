package nodeconfig

import (
	"io"
	"strings"
	"testing"
	"time"
)

func TestAShadowHasTheAddressesOfTheNodeThatItFollows(t *testing.T) {
	cfg, err := Parse(SyncLoop, []string{
		"--shadow", "--state-dir=/srv/node", "--pleg-address=unix:///srv/pleg.sock", "-o", "json", "--shadow-for=1m",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.Peers.ConfigMux, "unix:///srv/node/run/configmux/configmux.sock"; got != want {
		t.Errorf("configmux is at %s, want %s", got, want)
	}
	if got, want := cfg.Peers.PLEG, "unix:///srv/pleg.sock"; got != want {
		t.Errorf("pleg is at %s, want the given address %s", got, want)
	}
	if want := (Shadow{On: true, JSON: true, For: time.Minute, Wait: DefaultShadowWait}); cfg.Shadow != want {
		t.Errorf("the shadow is %+v, want %+v", cfg.Shadow, want)
	}
	plain, err := Parse(SyncLoop, []string{"--state-dir=/srv/node"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if plain.Shadow.On || plain.Peers.ConfigMux != DefaultAddress(ConfigMux) {
		t.Errorf("without --shadow, configmux is at %s, shadow %+v", plain.Peers.ConfigMux, plain.Shadow)
	}
}

func TestFlagsOfAShadowAreChecked(t *testing.T) {
	for want, args := range map[string][]string{
		"--shadow-for: is for --shadow":    {"--shadow-for=1m"},
		"--shadow-output: is for --shadow": {"-o", "json"},
		`--shadow-output: "yaml": must be`: {"--shadow", "-o", "yaml"},
		"--shadow-for: -1s: must be":       {"--shadow", "--shadow-for=-1s"},
		"--shadow-wait: 1ms: must be":      {"--shadow", "--shadow-wait=1ms"},
	} {
		if _, err := Parse(SyncLoop, args, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}
