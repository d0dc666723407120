package nodeconfig

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/test/authority"
)

func TestAServiceOnTheNetwork(t *testing.T) {
	files := authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "configmux"})
	tls := []string{"--tls-cert=" + files.Cert, "--tls-key=" + files.Key, "--tls-ca=" + files.CA}
	cfg := parse(t, ConfigMux, append(tls, "--tls-listen=:7441", "--observe-names=syncloop, laptop", "--secret-names=syncloop",
		"--apply-names=deploy", "--nodestatus-address=dns:///node-1.example:7444", "--configmux-address=192.0.2.1:7441")...)
	want := peertls.Listen{Address: ":7441", Files: files, Names: rights.Names{
		rights.Observe: {"laptop", "syncloop"}, rights.Secrets: {"syncloop"}, rights.Apply: {"deploy"},
	}}
	if diff := cmp.Diff(want, cfg.Network); diff != "" {
		t.Errorf("network (-want +got):\n%s", diff)
	}
	if cfg.TLS != files || cfg.Peers.NodeStatus != "dns:///node-1.example:7444" {
		t.Errorf("TLS = %v, Peers = %v", cfg.TLS, cfg.Peers)
	}
	// The socket of this machine stays where clients look for it.
	if want := DefaultAddress(ConfigMux); cfg.Listen != want {
		t.Errorf("Listen = %s, want %s", cfg.Listen, want)
	}
	all := parse(t, PLEG, append(tls, "--tls-listen=node-1:7442", "--allowed-names=laptop")...).Network.Names
	for _, role := range rights.Roles() {
		if all.Have([]string{"laptop"}, role) != (role != rights.Secrets) {
			t.Errorf("--allowed-names gives %v", all)
		}
	}
}

// TestNothingIsOnTheNetworkWithoutTLSAndRoles: the error names the flag.
func TestNothingIsOnTheNetworkWithoutTLSAndRoles(t *testing.T) {
	files := authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "pleg"})
	cert, key, ca := "--tls-cert="+files.Cert, "--tls-key="+files.Key, "--tls-ca="+files.CA
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"--listen=0.0.0.0:7442"}, []string{"--listen: ", "use --tls-listen", "--tls-cert"}},
		{[]string{"--tls-listen=:7442", "--observe-names=a"}, []string{"--tls-listen: ", "--tls-cert, --tls-key, --tls-ca"}},
		{[]string{"--tls-listen=:7442", cert, key, "--observe-names=a"}, []string{"--tls-listen: ", "give --tls-ca"}},
		{[]string{"--tls-listen=:7442", cert, key, ca}, []string{"--tls-listen: no certificate has a role", "--observe-names"}},
		{[]string{"--tls-listen=7442", cert, key, ca, "--observe-names=a"}, []string{"--tls-listen: ", "must be HOST:PORT"}},
		{[]string{"--observe-names=a"}, []string{"--observe-names: nothing is served on the network"}},
		{[]string{"--syncloop-address=node-1:7443"}, []string{"--syncloop-address: nothing is on the network without TLS"}},
		{[]string{"--syncloop-address=node-1:none"}, []string{"--syncloop-address: ", "port"}},
		{[]string{cert, key}, []string{"--tls-ca: is missing"}},
		{[]string{"--tls-cert=" + files.Cert + "x", key, ca}, []string{"--tls-cert, --tls-key: ", "no such file"}},
		{[]string{"--tls-cert=" + files.CA, key, ca}, []string{"does not go with"}},
		{[]string{cert, key, "--tls-ca=" + files.Key}, []string{"--tls-ca: ", "has no certificate"}},
	} {
		_, err := Parse(PLEG, tc.args, io.Discard)
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", tc.args, err, want)
			}
		}
	}
}
