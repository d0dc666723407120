package show

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

// updateMode is the value of --mode: the form of changes. Empty means incremental.
type updateMode string

const (
	modeIncremental updateMode = "incremental"
	modeUpdates     updateMode = "snapshot-and-updates"
	modeSnapshot    updateMode = "snapshot"
)

// String implements pflag.Value.
func (m *updateMode) String() string { return string(*m) }

// Type implements pflag.Value.
func (m *updateMode) Type() string { return "mode" }

// Set implements pflag.Value.
func (m *updateMode) Set(text string) error {
	switch updateMode(text) {
	case modeIncremental, modeUpdates, modeSnapshot:
		*m = updateMode(text)
		return nil
	default:
		return fmt.Errorf("must be %s, %s or %s", modeIncremental, modeUpdates, modeSnapshot)
	}
}

// hasSets reports whether all pods are in one message in this mode.
func (m updateMode) hasSets() bool { return m == modeUpdates || m == modeSnapshot }

// wire returns the mode in the contract.
func (m updateMode) wire() configv1.Mode {
	switch m {
	case modeUpdates:
		return configv1.Mode_MODE_SNAPSHOT_AND_UPDATES
	case modeSnapshot:
		return configv1.Mode_MODE_SNAPSHOT
	case modeIncremental:
		return configv1.Mode_MODE_INCREMENTAL
	default:
		return configv1.Mode_MODE_INCREMENTAL
	}
}

// recordedMode is the only mode of a recording.
type recordedMode struct{ updateMode }

// Set implements pflag.Value.
func (m *recordedMode) Set(text string) error {
	if text != string(modeIncremental) {
		return errors.New(
			"a recording contains every single change, because configmux --replay needs them: it is always incremental",
		)
	}
	return nil
}

// setView is the full desired set, reduced to the selected pods.
type setView struct {
	// Total is the number of pods in the set, including others.
	Total   int         `json:"total"`
	Pods    []setPod    `json:"pods"`
	Sources []setSource `json:"sources"`
}

// setPod is a pod of a set.
type setPod struct {
	Op          string  `json:"op"`
	Source      string  `json:"source"`
	Pod         *v1.Pod `json:"pod"`
	Traceparent string  `json:"traceparent,omitempty"`
}

// setSource is the state of a source at the time of the set.
type setSource struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}

// viewSet converts a set.
func viewSet(s *configv1.PodSet) (*setView, error) {
	out := &setView{Total: len(s.GetPods()), Pods: []setPod{}, Sources: []setSource{}}
	for _, u := range s.GetPods() {
		pod, err := decodePod(u)
		if err != nil {
			return nil, err
		}
		out.Pods = append(
			out.Pods,
			setPod{Op: opName(u.GetOp()), Source: u.GetSource(), Pod: pod, Traceparent: u.GetTraceparent()},
		)
	}
	for _, source := range s.GetSources() {
		out.Sources = append(out.Sources, setSource{Name: source.GetName(), Ready: source.GetReady()})
	}
	return out, nil
}

// summary returns a summary of the pods of a set, for example "1 of 3 pods, not ready: http".
func (s *setView) summary() string {
	noun := "pods"
	if s.Total == 1 {
		noun = "pod"
	}
	text := fmt.Sprintf("%d %s", s.Total, noun)
	if len(s.Pods) != s.Total {
		text = fmt.Sprintf("%d of %d %s", len(s.Pods), s.Total, noun)
	}
	var silent []string
	for _, source := range s.Sources {
		if !source.Ready {
			silent = append(silent, source.Name)
		}
	}
	if len(silent) > 0 {
		text += ", not ready: " + strings.Join(silent, ", ")
	}
	return text
}

// listedPods is the number of listed pods of a set by default, so that the previous set stays on the screen.
const listedPods = 20

// rows returns the rows of a set, one for each pod. They show only operations other than ADD.
func (s *setView) rows(all bool) [][]any {
	pods := s.Pods
	if !all && len(pods) > listedPods {
		pods = pods[:listedPods]
	}
	var rows [][]any
	for _, p := range pods {
		op := p.Op
		if op == opName(configv1.Op_OP_ADD) {
			op = ""
		}
		rows = append(
			rows,
			[]any{"", op, p.Source, p.Pod.Namespace + "/" + p.Pod.Name, string(p.Pod.UID), traceID(p.Traceparent), ""},
		)
	}
	if left := len(s.Pods) - len(pods); left > 0 {
		rows = append(rows, []any{"", "", "", fmt.Sprintf("and %d more: -o wide lists all", left), "", "", ""})
	}
	return rows
}
