package podworkers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// Facts are the known reasons for a pod or its containers to wait. The zero value is a pod that does not wait.
type Facts struct {
	// Behind is the pod of the same full name whose end the pod waits for; empty if there is none.
	Behind types.UID
	// Contested reports whether a source that has not answered yet may still name Behind.
	Contested bool
	// Sandbox is the error that keeps the pod's sandbox from being made; nil if there is none.
	Sandbox error
	// Reasons are the reasons of waiting containers, by name.
	Reasons map[string]podstatus.Reason
	// Failed is the error of the last work; nil if it succeeded.
	Failed error
}

// Wait is why a pod waits.
type Wait struct {
	// Reason is the reason and message of the pod's status; empty if the pod as a whole does not wait.
	Reason podstatus.Reason
	// For is what the pod waits for, as the workers of EngineService and the spans of a trace show it; empty for nothing.
	For string
}

// WaitOf returns why a pod waits. The pod's status, the list of workers and the trace all show its result.
func WaitOf(f Facts) Wait {
	wait := Wait{For: f.waitsFor()}
	switch {
	case f.Behind != "" && f.Contested:
		wait.Reason = podstatus.Reason{Reason: podstatus.ReasonNameTaken, Message: fmt.Sprintf("another pod of this name "+
			"still runs, with UID %s, and not every source has said that it does not want that one", f.Behind)}
	case f.Sandbox != nil:
		wait.Reason = podstatus.Reason{Reason: classify(f.Sandbox).reason, Message: f.Sandbox.Error()}
	}
	return wait
}

// mayWaitForVolumes reports whether a worker may wait for its volumes at this moment, or its last work has failed
// because of them.
func mayWaitForVolumes(w *enginev1.Worker) bool {
	switch w.GetWaitsFor() {
	case failedVolume.waits, failedRemoval.waits:
		return true
	case "": // a pod that is being stopped waits for its containers
		return w.GetBusy() && w.GetState() != enginev1.WorkerState_WORKER_STATE_TERMINATING
	}
	return false
}

// volumesWait returns what the volumes of a pod wait for that its worker waits for, each thing once and in the words of
// the volumes; empty if that is not known.
func volumesWait(all []*enginev1.Volume, state enginev1.WorkerState) string {
	wanted := enginev1.VolumeState_VOLUME_STATE_SETTING_UP
	if state == enginev1.WorkerState_WORKER_STATE_TERMINATED {
		wanted = enginev1.VolumeState_VOLUME_STATE_TEARING_DOWN
	}
	var waits []string
	for _, v := range all {
		if v.GetState() == wanted && v.GetWaitsFor() != "" && !slices.Contains(waits, v.GetWaitsFor()) {
			waits = append(waits, v.GetWaitsFor())
		}
	}
	return strings.Join(waits, ", ")
}

// waitsFor returns Wait.For. A failure comes last, because it is over with the next try.
func (f Facts) waitsFor() string {
	switch {
	case f.Behind != "":
		return fmt.Sprintf("the end of the pod %s of its name", f.Behind)
	case len(f.Reasons) > 0:
		var containers []string
		for _, name := range slices.Sorted(maps.Keys(f.Reasons)) {
			containers = append(containers, name+": "+f.Reasons[name].Reason)
		}
		return strings.Join(containers, ", ")
	case f.Failed != nil:
		if class := classify(f.Failed); class.waits != "" {
			return class.waits
		}
		if kind := telemetry.ErrorType(f.Failed); !strings.Contains(kind, ".") { // a Go type says nothing to people
			return "the next try, because " + kind
		}
		return "the next try"
	}
	return ""
}
