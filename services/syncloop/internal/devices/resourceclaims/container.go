package resourceclaims

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/resourcename"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimcheckpoint"
)

// requested is what a container uses of a claim.
type requested struct {
	claim types.NamespacedName
	// requests are the names of requests of the claim; an empty one stands for all of them.
	requests []string
}

// of returns what a container uses of the pod's claims.
func of(pod *v1.Pod, c *v1.Container) ([]requested, error) {
	names, err := namesOf(pod, c)
	if err != nil {
		return nil, err
	}
	var all []requested
	for _, n := range names {
		uses := requested{claim: types.NamespacedName{Namespace: pod.Namespace, Name: n.claim}}
		for _, claim := range c.Resources.Claims {
			if n.reference != "" && claim.Name == n.reference {
				uses.requests = append(uses.requests, claim.Request)
			}
		}
		if n.reference == "" {
			uses.requests = extended(pod, c)
		}
		if len(uses.requests) > 0 {
			all = append(all, uses)
		}
	}
	return all, nil
}

// extended returns the requests of the claim of extended resources that are for a container.
func extended(pod *v1.Pod, c *v1.Container) []string {
	var requests []string
	for _, mapping := range pod.Status.ExtendedResourceClaimStatus.RequestMappings {
		name := v1.ResourceName(mapping.ResourceName)
		amount, has := c.Resources.Requests[name]
		if mapping.ContainerName == c.Name && has && !amount.IsZero() && isExtended(name) {
			requests = append(requests, mapping.RequestName)
		}
	}
	return requests
}

// isExtended reports whether drivers may provide an extended resource.
func isExtended(name v1.ResourceName) bool {
	return resourcename.IsExtended(string(name)) ||
		strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix)
}

// Devices returns the CDI devices of a container that is about to be created.
func (m *Manager) Devices(pod *v1.Pod, c *v1.Container) ([]string, error) {
	uses, err := of(pod, c)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for _, used := range uses {
		claim, known := m.book.Claim(used.claim)
		if !known {
			return nil, fmt.Errorf("internal error: unable to get claim info for ResourceClaim %s in namespace %s",
				used.claim.Name, used.claim.Namespace)
		}
		for _, request := range used.requests {
			for _, name := range claim.DriverNames() {
				for _, d := range claim.Drivers[name].Devices {
					if d.For(request) {
						ids = append(ids, d.CDI...)
					}
				}
			}
		}
	}
	return unique(ids), nil
}

// unique returns the texts without repetitions, in their order.
func unique(texts []string) []string {
	var out []string
	for _, text := range texts {
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// Claims returns the claims of a container, for programs that ask which pod has which device.
func (m *Manager) Claims(pod *v1.Pod, c *v1.Container) []claimbook.Claim {
	uses, err := of(pod, c)
	if err != nil {
		return nil // the pod has not started yet
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []claimbook.Claim
	for _, used := range uses {
		if claim, known := m.book.Claim(used.claim); known {
			all = append(all, claim)
		}
	}
	return all
}

// Annotation returns the claims of a pod as text for an annotation of its sandbox, from which Recover reads them. It is
// empty for a pod without claims.
func (m *Manager) Annotation(pod types.UID) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var claims []claimbook.Claim
	for _, name := range m.book.Of(pod) {
		if claim, known := m.book.Claim(name); known {
			claims = append(claims, claim)
		}
	}
	if len(claims) == 0 {
		return "", nil
	}
	return claimcheckpoint.Encode(claims)
}
