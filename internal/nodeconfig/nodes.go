package nodeconfig

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/quartet-node/quartet/internal/peertls"
)

// flagNodes is the flag of a configmux of a site.
const flagNodes = "nodes"

// allNodes is the value of flagNodes for all nodes of the cluster.
const allNodes = "all"

// Nodes are the nodes that a configmux of a site serves: all, those with labels, or those of a list. The zero value is
// the configmux of one node.
type Nodes struct {
	// All is every node of the cluster.
	All bool
	// Selector selects nodes by their labels; empty for none.
	Selector string
	// Names lists the nodes, sorted; empty for none.
	Names []string
}

// Given reports whether this is the configmux of a site.
func (n Nodes) Given() bool { return n.All || n.Selector != "" || len(n.Names) > 0 }

func addNodes(set *pflag.FlagSet, value *string) {
	set.StringVar(
		value,
		flagNodes,
		"",
		"`NODES` to serve for a site, instead of this one: all, a selector of labels such as site=berlin, or NAME,NAME; each "+
			"connects with the certificate of its kubelet",
	)
}

// parseNodes parses the value of the flag. A selector has an operator, which no name has. The problem is empty if it is
// valid.
func parseNodes(value string) (nodes Nodes, problem string) {
	const forms = "must be all, a selector of labels such as site=berlin, or names of nodes as NAME,NAME"
	switch {
	case value == allNodes:
		return Nodes{All: true}, ""
	case strings.ContainsAny(value, "=!()<>"):
		selector, err := labels.Parse(value)
		if err != nil {
			return Nodes{}, err.Error() + ": " + forms
		}
		if selector.Empty() {
			return Nodes{}, forms
		}
		return Nodes{Selector: selector.String()}, ""
	}
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return Nodes{}, "\"" + name + "\" cannot name a node: " + forms
		}
		nodes.Names = append(nodes.Names, name)
	}
	slices.Sort(nodes.Names)
	nodes.Names = slices.Compact(nodes.Names)
	return nodes, ""
}

// notOfSite are the flags of configmux that concern the machine's own node.
var notOfSite = []string{
	"pod-manifest-path", "replay", "await-kubeconfig",
	"apply" + uidsSuffix, "apply" + namesSuffix, "secret" + uidsSuffix, "secret" + namesSuffix,
}

// site sets the nodes of a site, and checks what they need: an API server, and the network with TLS.
func (f *flags) site(cfg *Config, fail failure) {
	if !f.given(flagNodes) {
		return
	}
	nodes, problem := parseNodes(f.nodes)
	if problem != "" {
		fail(flagNodes, "%s", problem)
	}
	cfg.Nodes = nodes
	if f.kubeconfig == "" {
		fail(flagNodes, "the pods of a site come from an API server: give --kubeconfig")
	}
	if !f.given(peertls.FlagListen) {
		fail(flagNodes, "nodes connect by the network: give --%s", peertls.FlagListen)
	}
	for _, flag := range notOfSite {
		if f.given(flag) {
			fail(flag, "is for the configmux of one node: leave it out with --%s", flagNodes)
		}
	}
}

// siteFile returns the problems with the file of a configmux of a site.
func siteFile(cfg *Config) []error {
	var errs []error
	for _, field := range []struct{ name, value string }{
		{"staticPodPath", cfg.Kubelet.StaticPodPath}, {"staticPodURL", cfg.Kubelet.StaticPodURL},
	} {
		if cfg.Nodes.Given() && field.value != "" {
			errs = append(errs, &FieldError{
				File: cfg.File, Field: field.name,
				Problem: "static pods are those of one node: give configmux a file without them with --" + flagNodes,
			})
		}
	}
	return errs
}
