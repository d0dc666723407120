package servicelinks

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceWith returns a service with ports.
func serviceWith(namespace, name, ip string, ports ...v1.ServicePort) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports},
	}
}

func TestVariables(t *testing.T) {
	api := serviceWith("default", "kubernetes", "10.96.0.1", v1.ServicePort{Name: "https", Port: 443, Protocol: v1.ProtocolTCP})
	ofAPI := []string{
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", "KUBERNETES_SERVICE_PORT_HTTPS=443",
		"KUBERNETES_PORT=tcp://10.96.0.1:443", "KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443", "KUBERNETES_PORT_443_TCP_PROTO=tcp",
		"KUBERNETES_PORT_443_TCP_PORT=443", "KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1",
	}
	dns := serviceWith("shop", "my-dns", "fd00::a", v1.ServicePort{Name: "dns-udp", Port: 53, Protocol: v1.ProtocolUDP}, v1.ServicePort{Name: "metrics", Port: 9153})
	ofDNS := []string{
		"MY_DNS_SERVICE_HOST=fd00::a", "MY_DNS_SERVICE_PORT=53", "MY_DNS_SERVICE_PORT_DNS_UDP=53", "MY_DNS_SERVICE_PORT_METRICS=9153",
		"MY_DNS_PORT=udp://[fd00::a]:53",
		"MY_DNS_PORT_53_UDP=udp://[fd00::a]:53", "MY_DNS_PORT_53_UDP_PROTO=udp", "MY_DNS_PORT_53_UDP_PORT=53", "MY_DNS_PORT_53_UDP_ADDR=fd00::a",
		"MY_DNS_PORT_9153_TCP=tcp://[fd00::a]:9153", "MY_DNS_PORT_9153_TCP_PROTO=tcp", "MY_DNS_PORT_9153_TCP_PORT=9153", "MY_DNS_PORT_9153_TCP_ADDR=fd00::a",
	}
	unnamed := serviceWith("shop", "a", "10.96.0.9", v1.ServicePort{Port: 80})
	ofUnnamed := []string{
		"A_SERVICE_HOST=10.96.0.9", "A_SERVICE_PORT=80", "A_PORT=tcp://10.96.0.9:80",
		"A_PORT_80_TCP=tcp://10.96.0.9:80", "A_PORT_80_TCP_PROTO=tcp", "A_PORT_80_TCP_PORT=80", "A_PORT_80_TCP_ADDR=10.96.0.9",
	}
	headless := serviceWith("shop", "headless", v1.ClusterIPNone, v1.ServicePort{Port: 80})
	// its type was changed, and the address is left from before
	external := serviceWith("shop", "external", "10.96.0.10", v1.ServicePort{Port: 80})
	external.Spec.Type = v1.ServiceTypeExternalName
	ownKubernetes := serviceWith("shop", "kubernetes", "10.96.0.11", v1.ServicePort{Port: 1})

	for _, test := range []struct {
		name      string
		services  []*v1.Service
		namespace string
		noLinks   bool
		want      []string
	}{
		{name: "the API server's in every namespace", services: []*v1.Service{api, dns}, namespace: "other", want: ofAPI},
		{name: "of the namespace, by their names", services: []*v1.Service{dns, api, unnamed}, namespace: "shop", want: append(append(append([]string{}, ofUnnamed...), ofAPI...), ofDNS...)},
		{name: "without links the API server's alone", services: []*v1.Service{api, dns}, namespace: "shop", noLinks: true, want: ofAPI},
		{name: "without links in namespace default", services: []*v1.Service{api, serviceWith("default", "b", "10.96.0.2", v1.ServicePort{Port: 1})}, namespace: "default", noLinks: true, want: ofAPI},
		{name: "one called kubernetes elsewhere is not the API server's", services: []*v1.Service{ownKubernetes}, namespace: "other"},
		{name: "nor is it without links", services: []*v1.Service{ownKubernetes, api}, namespace: "shop", noLinks: true, want: ofAPI},
		{name: "but it counts in its namespace", services: []*v1.Service{api, ownKubernetes}, namespace: "shop", want: []string{
			"KUBERNETES_SERVICE_HOST=10.96.0.11", "KUBERNETES_SERVICE_PORT=1", "KUBERNETES_PORT=tcp://10.96.0.11:1", "KUBERNETES_PORT_1_TCP=tcp://10.96.0.11:1",
			"KUBERNETES_PORT_1_TCP_PROTO=tcp", "KUBERNETES_PORT_1_TCP_PORT=1", "KUBERNETES_PORT_1_TCP_ADDR=10.96.0.11",
		}},
		{name: "none that are headless, external, or have no address or port", services: []*v1.Service{
			headless, external, serviceWith("shop", "pending", "", v1.ServicePort{Port: 80}), serviceWith("shop", "portless", "10.96.0.12"),
		}, namespace: "shop"},
	} {
		t.Run(test.name, func(t *testing.T) {
			services := map[string]map[string]service{}
			for _, s := range test.services {
				put(services, s)
			}
			var got []string
			for _, e := range variables(services, test.namespace, !test.noLinks) {
				got = append(got, e.Name+"="+e.Value)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("variables (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAVariableOfTwoServicesOccursOnce has a port whose name makes two services define the same variable.
func TestAVariableOfTwoServicesOccursOnce(t *testing.T) {
	services := map[string]map[string]service{}
	put(services, serviceWith("shop", "web", "10.96.0.1", v1.ServicePort{Port: 80}))
	put(services, serviceWith("shop", "web-port-80-tcp", "10.96.0.2", v1.ServicePort{Port: 81}))
	found := map[string][]string{}
	for _, e := range variables(services, "shop", true) {
		found[e.Name] = append(found[e.Name], e.Value)
	}
	if got := found["WEB_PORT_80_TCP_PORT"]; len(got) != 1 || got[0] != "tcp://10.96.0.2:81" {
		t.Errorf("WEB_PORT_80_TCP_PORT is %q, want exactly one and got[0] %q", got, "tcp://10.96.0.2:81")
	}
}
