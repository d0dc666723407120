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
)

// apiServerService is the service of namespace default through which pods reach the API server. All pods get its
// variables.
const apiServerService = "kubernetes"

// service is what is kept of an object.
type service struct {
	clusterIP string
	ports     []port
}

// port is what is kept of a port of a service.
type port struct {
	name, protocol string
	number         int32
}

// kept returns what variables need of a service; ok is false when it gives none because it has no address or no port: a
// headless service or one of type ExternalName.
func kept(object *v1.Service) (s service, ok bool) {
	spec := object.Spec
	if spec.ClusterIP == "" || spec.ClusterIP == v1.ClusterIPNone || spec.Type == v1.ServiceTypeExternalName || len(spec.Ports) == 0 {
		return service{}, false
	}
	s = service{clusterIP: spec.ClusterIP, ports: make([]port, len(spec.Ports))}
	for i, p := range spec.Ports {
		s.ports[i] = port{name: p.Name, protocol: strings.ToLower(cmp.Or(string(p.Protocol), string(v1.ProtocolTCP))), number: p.Port}
	}
	return s, true
}

// variables returns the variables of the services that a pod of a namespace is told of: those of its namespace when
// links is true, and always the API server's. The services are ordered by name and the variables of each as in a
// kubelet. A name occurs once; where two services give the same name, the last one counts.
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
			if place, there := places[e.Name]; there {
				all[place] = e
				continue
			}
			places[e.Name] = len(all)
			all = append(all, e)
		}
	}
	return all
}

// variables returns the variables of one service: its address and ports, then what Docker's links had.
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
		of := fmt.Sprintf("%s_PORT_%d_%s", prefix, p.number, strings.ToUpper(p.protocol))
		all = append(all,
			v1.EnvVar{Name: of, Value: url},
			v1.EnvVar{Name: of + "_PROTO", Value: p.protocol},
			v1.EnvVar{Name: of + "_PORT", Value: number(p.number)},
			v1.EnvVar{Name: of + "_ADDR", Value: s.clusterIP},
		)
	}
	return all
}

// inVariable is the form of a service's or port's name in the name of a variable.
func inVariable(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

func number(n int32) string { return strconv.Itoa(int(n)) }
