package containerspec

import (
	"bytes"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Hosts returns the content of a pod's /etc/hosts. On the host's network it is base, the host's own file, with the
// pod's aliases.
func Hosts(pod *v1.Pod, podIPs []string, clusterDomain string, base []byte) []byte {
	var b bytes.Buffer
	b.WriteString("# Kubernetes-managed hosts file")
	if pod.Spec.HostNetwork {
		b.WriteString(" (host network).\n")
		b.Write(base)
	} else {
		b.WriteString(".\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		host, domain := Hostname(pod, clusterDomain)
		if domain != "" {
			host = host + "." + domain + "\t" + host
		}
		for _, ip := range podIPs {
			fmt.Fprintf(&b, "%s\t%s\n", ip, host)
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, alias := range pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
		}
	}
	return b.Bytes()
}
