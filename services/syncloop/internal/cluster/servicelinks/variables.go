package servicelinks

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/podobjects"
)

// apiServerService is the service of namespace default through which pods reach the API server. All pods get its
// variables.
const apiServerService = podobjects.APIService

// service is the cached part of an object.
type service struct {
	clusterIP string
	ports     []port
}

// port is the cached part of a port of a service.
type port struct {
	name, protocol string
	number         int32
}

// kept returns the part of a service that its variables need; ok is false if it has no variables because it has no
// address or no port, like a headless service or one of type ExternalName.
func kept(object *v1.Service) (s service, ok bool) {
	spec := object.Spec
	if spec.ClusterIP == "" || spec.ClusterIP == v1.ClusterIPNone || spec.Type == v1.ServiceTypeExternalName ||
		len(spec.Ports) == 0 {
		return service{}, false
	}
	s = service{clusterIP: spec.ClusterIP, ports: make([]port, len(spec.Ports))}
	for i, p := range spec.Ports {
		s.ports[i] = port{
			name: p.Name, protocol: strings.ToLower(cmp.Or(string(p.Protocol), string(v1.ProtocolTCP))), number: p.Port,
		}
	}
	return s, true
}

// variables returns the service variables for a pod of a namespace: those of the namespace's services if links is true,
// and always those of the API server. The services are ordered by name, and the variables of each as in a kubelet.
// Names are unique; if two services define the same name, the last one wins.
func variables(services map[string]map[string]service, namespace string, links bool) []v1.EnvVar {
	chosen := map[string]service{}
	if s, ok := services[metav1.NamespaceDefault][apiServerService]; ok {
		chosen[apiServerService] = s
	}
	if links {
		maps.Copy(chosen, services[namespace])
	}
	var all []v1.EnvVar
	places := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		for _, e := range chosen[name].variables(name) {
			if place, found := places[e.Name]; found {
				all[place] = e
				continue
			}
			places[e.Name] = len(all)
			all = append(all, e)
		}
	}
	return all
}

// variables returns the variables of one service: its address and ports, then those of Docker's links.
func (s service) variables(name string) []v1.EnvVar {
	prefix := inVariable(name)
	all := []v1.EnvVar{
		{Name: prefix + "_SERVICE_HOST", Value: s.clusterIP},
		{Name: prefix + "_SERVICE_PORT", Value: number(s.ports[0].number)},
	}
	for _, p := range s.ports {
		if p.name != "" {
			all = append(all, v1.EnvVar{Name: prefix + "_SERVICE_PORT_" + inVariable(p.name), Value: number(p.number)})
		}
	}
	for i, p := range s.ports {
		url := p.protocol + "://" + net.JoinHostPort(s.clusterIP, number(p.number))
		if i == 0 {
			all = append(all, v1.EnvVar{Name: prefix + "_PORT", Value: url})
		}
		portName := fmt.Sprintf("%s_PORT_%d_%s", prefix, p.number, strings.ToUpper(p.protocol))
		all = append(all,
			v1.EnvVar{Name: portName, Value: url},
			v1.EnvVar{Name: portName + "_PROTO", Value: p.protocol},
			v1.EnvVar{Name: portName + "_PORT", Value: number(p.number)},
			v1.EnvVar{Name: portName + "_ADDR", Value: s.clusterIP},
		)
	}
	return all
}

// inVariable converts the name of a service or port for use in the name of a variable.
func inVariable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

func number(n int32) string { return strconv.Itoa(int(n)) }
