package record

import (
	"google.golang.org/protobuf/proto"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

// Recorded returns the record of a pod for a recording, without the messages of its containers, which may be secret.
func (p Pod) Recorded(uid string) *debugv1.PLEGRecordPod {
	out := &debugv1.PLEGRecordPod{Uid: uid}
	if p.Status != nil {
		out.Observed = recordedState(Published{Status: p.Status, Phases: phasesByName(p.phases)})
	}
	if p.previous != nil {
		out.Published = recordedState(*p.previous)
	}
	return out
}

// FromRecorded returns the record of which Recorded has returned a copy.
func FromRecorded(recorded *debugv1.PLEGRecordPod) Pod {
	p := Pod{Status: recorded.GetObserved().GetStatus(), phases: phasesOf(phasesIn(recorded.GetObserved()))}
	if published := recorded.GetPublished(); published != nil {
		p.previous = &Published{Status: published.GetStatus(), Phases: phasesIn(published), Whole: published.GetWhole()}
	}
	return p
}

// recordedState returns a state whose phases are nil without an inspection.
func recordedState(state Published) *debugv1.PLEGRecordState {
	status := proto.CloneOf(state.Status)
	for _, c := range status.GetContainers() {
		c.Message = ""
	}
	return &debugv1.PLEGRecordState{
		Status: status, Inspected: state.Phases != nil, Phases: state.Phases, Whole: state.Whole,
	}
}

// phasesIn returns the phases of a state; nil without an inspection.
func phasesIn(state *debugv1.PLEGRecordState) map[string]string {
	if state.GetInspected() && state.GetPhases() == nil {
		return map[string]string{}
	}
	return state.GetPhases()
}
