package prober

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// Observe processes the desired and observed state of a pod, and its first address. Probes of new running containers
// start, and those of ended containers stop; their results stay until the next container of the name exists, because
// they may be the reason for its start. For a terminating pod only the readiness probe continues, so that clients learn
// how long the pod accepts requests.
func (m *Manager) Observe(want *v1.Pod, status *lifecyclev1.PodStatus, ip string, ending bool) {
	specs := probed(want)
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[want.UID]
	if p == nil {
		if len(specs) == 0 {
			return
		}
		p = newPod(want.UID)
		m.pods[want.UID] = p
	}
	p.ending = ending
	inSpec := map[string]bool{}
	for _, spec := range specs {
		seen := podview.Latest(status, spec.Name)
		if !podview.Alive(seen) {
			continue
		}
		inSpec[spec.Name] = true
		m.follow(p, want, spec, seen, ip)
	}
	for name := range p.containers {
		if !inSpec[name] {
			m.end(p, name)
		}
	}
	m.dropGone(p, status)
}

// follow starts or updates the probes of a container. The caller holds mu.
func (m *Manager) follow(p *pod, want *v1.Pod, spec *v1.Container, seen *lifecyclev1.Container, ip string) {
	c := p.containers[spec.Name]
	if c != nil && c.id != seen.GetId() {
		m.end(p, spec.Name)
		c = nil
	}
	if c == nil {
		if !podview.Running(seen) {
			return // it is unknown whether it runs
		}
		c = &container{id: seen.GetId(), probes: map[probecalls.Kind]*probe{}}
		p.containers[spec.Name], p.ids[c.id] = c, true
	}
	for _, kind := range kinds() {
		target := probecalls.Target{
			Pod: want, Container: spec, Kind: kind, Probe: specOf(spec, kind), ContainerID: c.id, PodIP: ip,
		}
		m.followOne(p, c, target, seen)
	}
	for kind, one := range c.probes {
		switch {
		case p.ending && kind != probecalls.Readiness:
			m.stop(one)
		case spec.StartupProbe == nil: // it may have been removed
			m.open(one)
		}
	}
}

// followOne starts or updates a probe, or stops it if the container does not have it any more. The caller holds mu.
func (m *Manager) followOne(p *pod, c *container, target probecalls.Target, seen *lifecyclev1.Container) {
	one := c.probes[target.Kind]
	if target.Probe == nil {
		if one != nil {
			m.stop(one)
			delete(c.probes, target.Kind)
		}
		return
	}
	p.targets[probeKey{target.Container.Name, target.Kind}] = target
	if one != nil {
		if before := one.target.Probe; before != target.Probe && !equality.Semantic.DeepEqual(before, target.Probe) {
			one.machine.change(timingOf(target.Probe), m.cfg.Clock.Now())
			m.schedule(one)
		}
		one.target = target
		return
	}
	kept, startedAt := m.published[c.id], podview.Time(seen.GetStartedAt())
	one = &probe{
		target: target, place: -1, startedBy: seen.GetAnnotations()[telemetry.AnnotationTraceparent], startedAt: startedAt,
		since: kept[target.Kind].Since,
		machine: begin(target.Kind, timingOf(target.Probe), beginning{
			now: m.cfg.Clock.Now(), startedAt: startedAt, kept: kept[target.Kind].Result,
			gated:   target.Container.StartupProbe != nil && kept[probecalls.Startup].Result != decide.Success,
			resumed: startedAt.Before(m.begun), spread: m.cfg.Spread(),
		}),
	}
	c.probes[target.Kind] = one
	m.schedule(one)
}

// end stops the probes of a container. The caller holds mu.
func (m *Manager) end(p *pod, name string) {
	for _, one := range p.containers[name].probes {
		m.stop(one)
	}
	delete(p.containers, name)
}

// dropGone drops the results of containers that do not run and are not the last of their name. The caller holds mu.
func (m *Manager) dropGone(p *pod, status *lifecyclev1.PodStatus) {
	if status.GetInspectError() != "" {
		return // the status is outdated
	}
	needed := map[string]bool{}
	for _, c := range status.GetContainers() {
		needed[c.GetId()] = podview.Alive(c) || c == podview.Latest(status, c.GetName())
	}
	for id := range p.ids {
		if !needed[id] {
			delete(p.ids, id)
			delete(m.published, id)
			m.tidyLater(p.uid)
		}
	}
	if len(p.ids) == 0 && len(p.targets) == 0 {
		delete(m.pods, p.uid)
	}
}
