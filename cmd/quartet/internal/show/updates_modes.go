package show

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
)

// updateMode is what --mode says: the form in which configmux tells of changes. Empty is incremental.
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

// hasSets is true in the modes in which all pods come in one message.
func (m updateMode) hasSets() bool { return m == modeUpdates || m == modeSnapshot }

// wire is the mode in the words of the contract.
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

// recordedMode is the mode of a recording, which is always the same.
type recordedMode struct{ updateMode }

// Set implements pflag.Value.
func (m *recordedMode) Set(text string) error {
	if text != string(modeIncremental) {
		return errors.New("a recording has every single change, for that is what configmux --replay gives back: it is always incremental")
	}
	return nil
}

// toldSet is all that is desired at one moment, as far as it is about the pods that are asked for.
type toldSet struct {
	// Total is how many pods the set has, those that are not asked for too.
	Total   int          `json:"total"`
	Pods    []toldPod    `json:"pods"`
	Sources []toldSource `json:"sources"`
}

// toldPod is a pod of a set.
type toldPod struct {
	Op          string  `json:"op"`
	Source      string  `json:"source"`
	Pod         *v1.Pod `json:"pod"`
	Traceparent string  `json:"traceparent,omitempty"`
}

// toldSource is the state of a source when the set was made.
type toldSource struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}

// tellSet says what a set says.
func tellSet(s *configv1.PodSet) (*toldSet, error) {
	out := &toldSet{Total: len(s.GetPods()), Pods: []toldPod{}, Sources: []toldSource{}}
	for _, u := range s.GetPods() {
		pod, err := decodePod(u)
		if err != nil {
			return nil, err
		}
		out.Pods = append(out.Pods, toldPod{Op: opName(u.GetOp()), Source: u.GetSource(), Pod: pod, Traceparent: u.GetTraceparent()})
	}
	for _, source := range s.GetSources() {
		out.Sources = append(out.Sources, toldSource{Name: source.GetName(), Ready: source.GetReady()})
	}
	return out, nil
}

// summary is what the line of a set says of its pods, for example "1 of 3 pods, not ready: http".
func (s *toldSet) summary() string {
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

// listedPods is how many pods of a set are listed unless all are asked for: a screen has room for the set before too.
const listedPods = 20

// rows are the lines of a set below its own, one for each pod. That a pod of a set is there needs no saying: only another
// operation is named.
func (s *toldSet) rows(all bool) [][]any {
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
		rows = append(rows, []any{"", op, p.Source, p.Pod.Namespace + "/" + p.Pod.Name, string(p.Pod.UID), traceID(p.Traceparent), ""})
	}
	if left := len(s.Pods) - len(pods); left > 0 {
		rows = append(rows, []any{"", "", "", fmt.Sprintf("and %d more: -o wide lists all", left), "", "", ""})
	}
	return rows
}
