package syncloop

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestTheServingCertificateIsOfTheNodeAtItsAddresses(t *testing.T) {
	request := requestOf("node-1", []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeHostName, Address: "node-1"}, {Type: v1.NodeInternalDNS, Address: "node-1.example"},
		{Type: v1.NodeInternalDNS, Address: "node-1.example"}, {Type: v1.NodeExternalIP, Address: "2001:db8::1"}, {Type: v1.NodeInternalIP, Address: "not an address"},
	})
	if request.Subject.String() != "CN=system:node:node-1,O=system:nodes" || strings.Join(request.DNSNames, " ") != "node-1 node-1.example" || len(request.IPAddresses) != 2 {
		t.Errorf("request.Subject = %s, %v, %v, want %q, %q and 2 entries",
			request.Subject, request.DNSNames, request.IPAddresses, "CN=system:node:node-1,O=system:nodes",
			"node-1 node-1.example")
	}
	if requestOf("node-1", []v1.NodeAddress{{Type: v1.NodeHostName, Address: "node-1"}}) != nil {
		t.Error("a request that no signer would sign")
	}
}
