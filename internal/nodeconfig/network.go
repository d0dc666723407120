package nodeconfig

import (
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/peertls"
)

// addNetwork adds the flags for parts on other machines.
func (f *flags) addNetwork(service Service, set *pflag.FlagSet) {
	set.StringVar(
		&f.tlsListen,
		peertls.FlagListen,
		"",
		"`HOST:PORT` to serve on for other machines, besides --listen, with TLS at both ends",
	)
	AddTLSFiles(set, &f.tls)
	f.roles.addNames(service, set)
}

// AddTLSFiles adds the flags with the files of TLS between parts.
func AddTLSFiles(set *pflag.FlagSet, files *peertls.Files) {
	set.StringVar(&files.Cert, peertls.FlagCert, "",
		"`FILE` in PEM with the certificate that is shown to parts on other machines, read again when it changes")
	set.StringVar(&files.Key, peertls.FlagKey, "", "`FILE` in PEM with the key of --"+peertls.FlagCert)
	set.StringVar(&files.CA, peertls.FlagCA, "",
		"`FILE` in PEM with the authorities whose certificates are accepted from parts on other machines")
}

// network sets what is served on the network, and the files of TLS. Nothing is on the network without them.
func (f *flags) network(service Service, cfg *Config, fail failure) {
	var needs []string
	for _, peer := range Services() {
		if peer != service && peertls.OnNetwork(cfg.Peers.Of(peer)) {
			needs = append(needs, string(peer)+"-address")
		}
	}
	if f.given(peertls.FlagListen) {
		needs = append(needs, peertls.FlagListen)
		if problem := peertls.CheckListen(f.tlsListen); problem != "" {
			fail(peertls.FlagListen, "%s", problem)
		}
	}
	f.tlsFiles(cfg, needs, fail)
	names := f.roles.names()
	switch {
	case f.given(peertls.FlagListen) && len(names) == 0 && !f.given(flagNodes):
		fail(peertls.FlagListen, "no certificate has a role, so nobody could call: name some with --observe%s or another "+
			"flag of roles, see docs/security.md", namesSuffix)
	case !f.given(peertls.FlagListen) && len(names) > 0:
		for _, flag := range allRoleFlags {
			if f.roles[flag.name+namesSuffix] != nil && f.given(flag.name+namesSuffix) {
				fail(flag.name+namesSuffix, "nothing is served on the network: give --%s, or leave the flag out", peertls.FlagListen)
			}
		}
	}
	cfg.Network = peertls.Listen{Address: f.tlsListen, Files: cfg.TLS, Names: names, Nodes: f.given(flagNodes)}
}

// tlsFiles checks the files of TLS, which some flags need. Those of a machine's root that is mounted elsewhere are
// checked when they are used.
func (f *flags) tlsFiles(cfg *Config, needs []string, fail failure) {
	var missing []string
	for _, file := range []struct {
		flag string
		path *string
		into *string
	}{
		{peertls.FlagCert, &f.tls.Cert, &cfg.TLS.Cert},
		{peertls.FlagKey, &f.tls.Key, &cfg.TLS.Key},
		{peertls.FlagCA, &f.tls.CA, &cfg.TLS.CA},
	} {
		if *file.path == "" {
			missing = append(missing, "--"+file.flag)
			continue
		}
		abs, err := filepath.Abs(*file.path)
		if err != nil {
			fail(file.flag, "%v", err)
		}
		*file.into = abs
	}
	switch {
	case len(missing) > 0 && len(needs) > 0:
		fail(needs[0], "nothing is on the network without TLS: give %s", strings.Join(missing, ", "))
	case len(missing) == 1 || len(missing) == 2: //nolint:mnd // some of three
		fail(strings.TrimPrefix(missing[0], "--"), "is missing: the three files of TLS go together")
	case len(missing) == 0 && !f.given("host-root"):
		if _, err := peertls.Open(cfg.TLS); err != nil {
			flag, problem, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), ": ")
			fail(flag, "%s", problem)
		}
	}
}
