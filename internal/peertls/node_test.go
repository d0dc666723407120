package peertls_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/internal/peertls"
)

func TestACertificateOfANode(t *testing.T) {
	nodes := []string{"system:nodes"}
	for _, tc := range []struct {
		name   string
		groups []string
		dns    []string
		want   string
	}{
		{"system:node:a", nodes, nil, "a"},
		{"system:node:a.example", []string{"x", "system:nodes"}, []string{"system:node:b"}, "a.example"},
		{"system:node:a", nil, nil, ""},
		{"system:node:a", []string{"system:masters"}, nil, ""},
		{"a", nodes, []string{"system:node:a"}, ""},
		{"system:node:", nodes, nil, ""},
		{"system:node:../a", nodes, nil, ""},
		{"system:node:A", nodes, nil, ""},
		{"System:Node:a", nodes, nil, ""},
		{"system:node:a\x00b", nodes, nil, ""},
	} {
		certificate := &x509.Certificate{
			Subject: pkix.Name{CommonName: tc.name, Organization: tc.groups}, DNSNames: tc.dns,
		}
		if got := peertls.NodeOf(certificate); got != tc.want {
			t.Errorf("%q of %q is the node %q, want %q", tc.name, tc.groups, got, tc.want)
		}
	}
}

// TestANodeHasOneCertificateName: two common names are never the same node, and DNS names do not matter.
func TestANodeHasOneCertificateName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		certificate := &x509.Certificate{
			Subject: pkix.Name{
				CommonName:   rapid.OneOf(rapid.String(), rapid.StringMatching(`system:node:[a-c.A/-]{0,4}`)).Draw(t, "name"),
				Organization: rapid.SliceOf(rapid.SampledFrom([]string{"system:nodes", "x"})).Draw(t, "groups"),
			},
			DNSNames: rapid.SliceOf(rapid.SampledFrom([]string{"system:node:a", "a"})).Draw(t, "dns"),
		}
		if node := peertls.NodeOf(certificate); node != "" && certificate.Subject.CommonName != "system:node:"+node {
			t.Fatalf("%q is the node %q", certificate.Subject.CommonName, node)
		}
	})
}
