package admission

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
)

// hostPort is a port of the machine that a pod uses.
type hostPort struct {
	protocol v1.Protocol
	ip       string
	port     int32
}

// anyIP is the address for all addresses of the machine.
const anyIP = "0.0.0.0"

// collides reports whether two ports exclude each other.
func (p hostPort) collides(other hostPort) bool {
	return p.protocol == other.protocol && p.port == other.port && (p.ip == other.ip || p.ip == anyIP || other.ip == anyIP)
}

// ports refuses a pod that requests a host port of another pod.
func ports(r Request) *Refusal {
	wanted := hostPorts(r.Pod)
	if len(wanted) == 0 {
		return nil
	}
	for _, other := range r.Others {
		for _, taken := range hostPorts(other) {
			if slices.ContainsFunc(wanted, taken.collides) {
				return predicate(ReasonPorts, messagePorts)
			}
		}
	}
	return nil
}

// hostPorts returns the host ports of the containers that run concurrently; those of an ordinary init container are
// free before the others are needed.
func hostPorts(pod *v1.Pod) []hostPort {
	var out []hostPort
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			taken := hostPort{protocol: p.Protocol, ip: p.HostIP, port: p.HostPort}
			if taken.protocol == "" {
				taken.protocol = v1.ProtocolTCP
			}
			if taken.ip == "" {
				taken.ip = anyIP
			}
			out = append(out, taken)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podset.IsSidecar(c) {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}
