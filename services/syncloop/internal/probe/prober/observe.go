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

// Observe takes in what is wanted and what was observed of a pod, and its first address. The probes of containers that have come to
// run begin, those of containers that have ended end; their results stay until the next one of the name is there, for they may be why that
// one is started. Of a pod that is being ended only readiness is asked on:
// whoever sends requests to it is to know how long it takes them.
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
	asked := map[string]bool{}
	for _, spec := range specs {
		seen := podview.Latest(status, spec.Name)
		if !podview.Alive(seen) {
			continue
		}
		asked[spec.Name] = true
		m.follow(p, want, spec, seen, ip)
	}
	for name := range p.containers {
		if !asked[name] {
			m.end(p, name)
		}
	}
	m.dropGone(p, status)
}

// follow begins the probes of a container, or brings them up to date. Called with mu held.
func (m *Manager) follow(p *pod, want *v1.Pod, spec *v1.Container, seen *lifecyclev1.Container, ip string) {
	c := p.containers[spec.Name]
	if c != nil && c.id != seen.GetId() {
		m.end(p, spec.Name)
		c = nil
	}
	if c == nil {
		if !podview.Running(seen) {
			return // it is not known whether it does
		}
		c = &container{id: seen.GetId(), probes: map[probecalls.Kind]*probe{}}
		p.containers[spec.Name], p.ids[c.id] = c, true
	}
	for _, kind := range kinds() {
		target := probecalls.Target{Pod: want, Container: spec, Kind: kind, Probe: specOf(spec, kind), ContainerID: c.id, PodIP: ip}
		m.followOne(p, c, target, seen)
	}
	for kind, one := range c.probes {
		switch {
		case p.ending && kind != probecalls.Readiness:
			m.stop(one)
		case spec.StartupProbe == nil: // it may have been taken out
			m.open(one)
		}
	}
}

// followOne begins a probe, brings it up to date, or ends it when the container does not ask for it any more. Called with mu held.
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
	kept, startedAt := m.told[c.id], podview.Time(seen.GetStartedAt())
	one = &probe{
		target: target, place: -1, startedBy: seen.GetAnnotations()[telemetry.AnnotationTraceparent], startedAt: startedAt, since: kept[target.Kind].Since,
		machine: begin(target.Kind, timingOf(target.Probe), beginning{
			now: m.cfg.Clock.Now(), startedAt: startedAt, kept: kept[target.Kind].Result,
			gated:   target.Container.StartupProbe != nil && kept[probecalls.Startup].Result != decide.Success,
			resumed: startedAt.Before(m.begun), spread: m.cfg.Spread(),
		}),
	}
	c.probes[target.Kind] = one
	m.schedule(one)
}

// end ends the probes of a container. Called with mu held.
func (m *Manager) end(p *pod, name string) {
	for _, one := range p.containers[name].probes {
		m.stop(one)
	}
	delete(p.containers, name)
}

// dropGone drops the results of containers that do not run and are not the last of their name. Called with mu held.
func (m *Manager) dropGone(p *pod, status *lifecyclev1.PodStatus) {
	if status.GetInspectError() != "" {
		return // what is known of it is old
	}
	needed := map[string]bool{}
	for _, c := range status.GetContainers() {
		needed[c.GetId()] = podview.Alive(c) || c == podview.Latest(status, c.GetName())
	}
	for id := range p.ids {
		if !needed[id] {
			delete(p.ids, id)
			delete(m.told, id)
			m.tidyLater(p.uid)
		}
	}
	if len(p.ids) == 0 && len(p.targets) == 0 {
		delete(m.pods, p.uid)
	}
}
