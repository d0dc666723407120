package prober

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
)

// Describe returns the results of a pod's probes, for people.
func (m *Manager) Describe(uid types.UID) []*enginev1.Probe {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[uid]
	if p == nil {
		return nil
	}
	var all []*enginev1.Probe
	for _, c := range p.containers {
		for _, one := range c.probes {
			all = append(all, one.describe())
		}
	}
	slices.SortFunc(all, func(x, y *enginev1.Probe) int {
		return cmp.Or(cmp.Compare(x.GetContainer(), y.GetContainer()), cmp.Compare(x.GetKind(), y.GetKind()))
	})
	return all
}

func (p *probe) describe() *enginev1.Probe {
	d := &enginev1.Probe{
		Container: p.target.Container.Name, ContainerId: p.target.ContainerID, Kind: string(p.target.Kind),
		Result: protoOf(p.machine.result), InARow: int32(p.machine.run), //nolint:gosec // at most a threshold, which is one
	}
	if !p.since.IsZero() {
		d.ResultSince = timestamppb.New(p.since)
	}
	if p.place >= 0 {
		d.NextAt = timestamppb.New(p.machine.next)
	}
	if p.cancel != nil && !p.stopped {
		d.AskingSince = timestamppb.New(p.calling)
	}
	if p.answer == nil {
		return d
	}
	d.AskedAt, d.Said = timestamppb.New(p.calledAt), p.answer.Output
	switch p.answer.Outcome {
	case probecalls.Success:
		d.Answer = enginev1.ProbeResult_PROBE_RESULT_SUCCESS
	case probecalls.Failure:
		d.Answer = enginev1.ProbeResult_PROBE_RESULT_FAILURE
	case probecalls.Unknown:
		d.InARow = 0
	}
	return d
}

func protoOf(result decide.ProbeResult) enginev1.ProbeResult {
	switch result {
	case decide.Success:
		return enginev1.ProbeResult_PROBE_RESULT_SUCCESS
	case decide.Failure:
		return enginev1.ProbeResult_PROBE_RESULT_FAILURE
	case decide.Unknown:
	}
	return enginev1.ProbeResult_PROBE_RESULT_UNSPECIFIED
}
