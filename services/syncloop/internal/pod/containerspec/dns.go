package containerspec

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a pod's resolv.conf, from libc's resolver.
const (
	maxNameServers   = 3
	maxSearchDomains = 32
	maxSearchLength  = 2048
	maxSearchDomain  = 253
	// maxResolvConf bounds the size of a resolv.conf in bytes.
	maxResolvConf = 10 << 20
)

// ParseResolvConf parses a resolv.conf. Name servers are collected, the last search line is used, and a repeated option
// replaces the previous one. It fails only if reading fails.
func ParseResolvConf(r io.Reader) (*runtimeapi.DNSConfig, error) {
	dns := &runtimeapi.DNSConfig{}
	lines := bufio.NewScanner(io.LimitReader(r, maxResolvConf))
	lines.Buffer(nil, maxResolvConf)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") || strings.HasPrefix(fields[0], ";") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) > 1 {
				dns.Servers = append(dns.Servers, fields[1])
			}
		case "search":
			dns.Searches = nil
			for _, domain := range fields[1:] {
				if domain != "." {
					dns.Searches = append(dns.Searches, strings.TrimSuffix(domain, "."))
				}
			}
		case "options":
			for _, option := range fields[1:] {
				dns.Options = putOption(dns.Options, option)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read resolv.conf: %w", err)
	}
	return dns, nil
}

func putOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, known := range options {
		if knownName, _, _ := strings.Cut(known, ":"); knownName == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

// DNS returns the DNS configuration of a pod according to its policy. host is the node's resolv.conf; nil if the node
// is configured without one. cut describes what was omitted or replaced, one sentence each.
func DNS(pod *v1.Pod, node Node, host *runtimeapi.DNSConfig) (dns *runtimeapi.DNSConfig, cut []string) {
	policy := pod.Spec.DNSPolicy
	if policy == v1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = v1.DNSDefault
	}
	if policy == v1.DNSClusterFirstWithHostNet || policy == "" {
		policy = v1.DNSClusterFirst
	}
	if policy == v1.DNSClusterFirst && len(node.ClusterDNS) == 0 {
		// Without a cluster this is normal, and not worth a message.
		policy = v1.DNSDefault
	}
	dns = &runtimeapi.DNSConfig{}
	switch policy {
	case v1.DNSNone:
	case v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet:
		dns.Servers = slices.Clone(node.ClusterDNS)
		dns.Searches = clusterSearches(pod.Namespace, node.ClusterDomain, host.GetSearches())
		dns.Options = []string{"ndots:5"}
	case v1.DNSDefault:
		if host == nil {
			dns.Servers, dns.Searches = localServers(node.IPs), []string{"."}
			break
		}
		dns.Servers, dns.Searches = slices.Clone(host.Servers), slices.Clone(host.Searches)
		dns.Options = slices.Clone(host.Options)
	}
	if extra := pod.Spec.DNSConfig; extra != nil {
		dns.Servers = unique(append(dns.Servers, extra.Nameservers...))
		dns.Searches = unique(append(dns.Searches, extra.Searches...))
		for _, option := range extra.Options {
			text := option.Name
			if option.Value != nil && *option.Value != "" {
				text += ":" + *option.Value
			}
			dns.Options = putOption(dns.Options, text)
		}
	}
	return dns, fit(dns)
}

func clusterSearches(namespace, domain string, host []string) []string {
	if domain == "" {
		return slices.Clone(host)
	}
	return unique(append([]string{namespace + ".svc." + domain, "svc." + domain, domain}, host...))
}

// localServers returns the name servers of a node without a resolv.conf: a resolver on the machine itself.
func localServers(nodeIPs []string) []string {
	var servers []string
	for _, ip := range nodeIPs {
		if strings.Contains(ip, ":") {
			servers = append(servers, "::1")
		} else {
			servers = append(servers, "127.0.0.1")
		}
	}
	if len(servers) == 0 {
		return []string{"127.0.0.1"}
	}
	return servers
}

func unique(words []string) []string {
	var out []string
	for _, word := range words {
		if !slices.Contains(out, word) {
			out = append(out, word)
		}
	}
	return out
}

// fit truncates a DNS configuration to the limits, and describes what was omitted.
func fit(dns *runtimeapi.DNSConfig) (cut []string) {
	if len(dns.Servers) > maxNameServers {
		dns.Servers = dns.Servers[:maxNameServers]
		cut = append(cut, fmt.Sprintf("Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: %s",
			strings.Join(dns.Servers, " ")))
	}
	before := len(dns.Searches)
	dns.Searches = slices.DeleteFunc(dns.Searches[:min(before, maxSearchDomains)], func(s string) bool {
		return len(s) > maxSearchDomain
	})
	for len(strings.Join(dns.Searches, " ")) > maxSearchLength {
		dns.Searches = dns.Searches[:len(dns.Searches)-1]
	}
	if len(dns.Searches) < before {
		cut = append(cut, fmt.Sprintf("Search Line limits were exceeded, some search paths have been omitted, the applied search line is: %s",
			strings.Join(dns.Searches, " ")))
	}
	return cut
}
