package containerspec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

const resolvConf = `# a comment
nameserver 192.0.2.53
nameserver 192.0.2.54
search replaced.example
search one.example. . two.example
options ndots:2 rotate
options ndots:3
`

func TestDNS(t *testing.T) {
	host, err := containerspec.ParseResolvConf(strings.NewReader(resolvConf))
	if err != nil {
		t.Fatal(err)
	}
	cluster := node
	cluster.ClusterDNS, cluster.ClusterDomain = []string{"10.96.0.10"}, "cluster.local"
	hosts := &runtimeapi.DNSConfig{
		Servers: []string{"192.0.2.53", "192.0.2.54"}, Searches: []string{"one.example", "two.example"}, Options: []string{"ndots:3", "rotate"},
	}
	clusters := &runtimeapi.DNSConfig{
		Servers: []string{"10.96.0.10"}, Options: []string{"ndots:5"},
		Searches: []string{"shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "one.example", "two.example"},
	}
	for _, test := range []struct {
		name        string
		policy      v1.DNSPolicy
		hostNetwork bool
		node        containerspec.Node
		host        *runtimeapi.DNSConfig
		extra       *v1.PodDNSConfig
		want        *runtimeapi.DNSConfig
	}{
		{"default", v1.DNSDefault, false, cluster, host, nil, hosts},
		{"cluster first", v1.DNSClusterFirst, false, cluster, host, nil, clusters},
		{"cluster first without a cluster", v1.DNSClusterFirst, false, node, host, nil, hosts},
		{"cluster first on the host's network", v1.DNSClusterFirst, true, cluster, host, nil, hosts},
		{"cluster first with the host's network", v1.DNSClusterFirstWithHostNet, true, cluster, host, nil, clusters},
		{"node without a resolv.conf", v1.DNSDefault, false, node, nil, nil, &runtimeapi.DNSConfig{Servers: []string{"127.0.0.1"}, Searches: []string{"."}}},
		{"none", v1.DNSNone, false, cluster, host, &v1.PodDNSConfig{Nameservers: []string{"192.0.2.9"}}, &runtimeapi.DNSConfig{Servers: []string{"192.0.2.9"}}},
		{"added", v1.DNSDefault, false, cluster, host,
			&v1.PodDNSConfig{Nameservers: []string{"192.0.2.53", "192.0.2.9"}, Searches: []string{"x.example"}, Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: new("1")}}},
			&runtimeapi.DNSConfig{Servers: []string{"192.0.2.53", "192.0.2.54", "192.0.2.9"}, Searches: []string{"one.example", "two.example", "x.example"}, Options: []string{"ndots:1", "rotate"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := testPod()
			pod.Spec.DNSPolicy, pod.Spec.HostNetwork, pod.Spec.DNSConfig = test.policy, test.hostNetwork, test.extra
			before := fmt.Sprint(test.host)
			got, cut := containerspec.DNS(pod, test.node, test.host)
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" || len(cut) > 0 {
				t.Errorf("cut %q, (-want +got):\n%s", cut, diff)
			}
			if fmt.Sprint(test.host) != before {
				t.Error("the node's configuration was changed")
			}
		})
	}
}

func TestDNSFitsWhatResolversRead(t *testing.T) {
	word := rapid.StringMatching(`[a-z]{1,300}`)
	rapid.Check(t, func(t *rapid.T) {
		pod := testPod()
		pod.Spec.DNSPolicy = v1.DNSNone
		pod.Spec.DNSConfig = &v1.PodDNSConfig{
			Nameservers: rapid.SliceOfN(word, 0, 6).Draw(t, "servers"), Searches: rapid.SliceOfN(word, 0, 40).Draw(t, "searches"),
		}
		got, cut := containerspec.DNS(pod, node, nil)
		if len(got.Servers) > 3 || len(got.Searches) > 32 || len(strings.Join(got.Searches, " ")) > 2048 {
			t.Fatalf("%d servers, %d searches of %d characters", len(got.Servers), len(got.Searches), len(strings.Join(got.Searches, " ")))
		}
		everything := len(got.Servers) == len(uniqueOf(pod.Spec.DNSConfig.Nameservers)) &&
			len(got.Searches) == len(uniqueOf(pod.Spec.DNSConfig.Searches))
		if everything != (len(cut) == 0) {
			t.Fatalf("what was cut is not said, or nothing was cut: %q", cut)
		}
	})
}

func uniqueOf(words []string) map[string]bool {
	set := map[string]bool{}
	for _, word := range words {
		set[word] = true
	}
	return set
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add(resolvConf)
	f.Add("nameserver\nsearch\noptions\n;x\n\x00")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := containerspec.ParseResolvConf(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, words := range [][]string{got.Servers, got.Searches, got.Options} {
			for _, word := range words {
				if strings.ContainsAny(word, " \t\n") {
					t.Fatalf("word %q from %q, want no white space in it", word, text)
				}
			}
		}
	})
}
