package nodestatus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/replayed"
	"github.com/quartet-node/quartet/services/nodestatus/internal/heartbeats"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

// actionCompute is the action of every difference.
const actionCompute = "compute"

// Replay computes the Node of each recorded heartbeat again.
type Replay struct {
	// File is the recording, and Config the path of a KubeletConfiguration to compute by; empty for the recorded one.
	File, Config string
	// Step is called with each heartbeat before it is computed; nil for none.
	Step func(text string) error
	// JSON prints JSON instead of text to Out.
	JSON bool
	Out  io.Writer
}

// replaySummary counts what was compared.
type replaySummary struct {
	Heartbeats  int `json:"heartbeats"`
	Differences int `json:"differences"`
}

// Run replays the recording to its end, prints the differences, and returns their number.
func (r Replay) Run(ctx context.Context) (differences int, err error) {
	file, err := os.Open(r.File)
	if err != nil {
		return 0, err
	}
	entries, err := noderecording.Read(file, r.File)
	if err := errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	change, err := r.change()
	if err != nil {
		return 0, err
	}
	var summary replaySummary
	printer := replayed.NewPrinter(r.Out, r.JSON)
	for _, e := range entries {
		heartbeat, ok := e.Value.(*nodev1.Heartbeat)
		if !ok {
			continue
		}
		if r.Step != nil {
			if err := r.Step(fmt.Sprintf("%s  line %d  heartbeat", e.Time.Format("15:04:05.000"), e.Line)); err != nil {
				return 0, err
			}
		}
		summary.Heartbeats++
		found, err := differ(heartbeat, change)
		if err != nil {
			return 0, fmt.Errorf("%s:%d: %w", r.File, e.Line, err)
		}
		for _, d := range found {
			d.Time, d.Action = e.Time, actionCompute
			summary.Differences++
			if err := errors.Join(printer.Difference(d), ctx.Err()); err != nil {
				return 0, err
			}
		}
	}
	if summary.Heartbeats == 0 {
		const problem = "there is no heartbeat of nodestatus: record again, for longer, as a user with the role admin"
		return 0, fmt.Errorf("%s: %s", r.File, problem)
	}
	text := fmt.Sprintf("Compared %d heartbeats. Differences: %s.", summary.Heartbeats,
		cmp.Or(map[bool]string{true: "none"}[summary.Differences == 0], fmt.Sprint(summary.Differences)))
	return summary.Differences, printer.Summary(text, summary)
}

// change returns the change of the input by another configuration. The name of the node stays.
func (r Replay) change() (func(*nodeobject.Input), error) {
	if r.Config == "" {
		return func(*nodeobject.Input) {}, nil
	}
	args := []string{"--hostname-override=recorded", "--config=" + r.Config}
	cfg, err := nodeconfig.Parse(nodeconfig.NodeStatus, args, io.Discard)
	if err != nil {
		return nil, err
	}
	settings, err := nodeobject.SettingsOf(cfg, buildinfo.Kubernetes())
	if err != nil {
		return nil, err
	}
	return func(in *nodeobject.Input) {
		was := in.Settings
		in.Settings = settings
		// These are given by flags, not by the file.
		in.Settings.Name, in.Settings.IPs, in.Settings.ChoosesIP = was.Name, was.IPs, was.ChoosesIP
		in.Settings.ExternalCloud, in.Settings.Labels = was.ExternalCloud, was.Labels
	}, nil
}

// differ computes a heartbeat again and returns the fields that differ, by their path.
func differ(heartbeat *nodev1.Heartbeat, change func(*nodeobject.Input)) ([]replayed.Difference, error) {
	again, recorded, err := heartbeats.Replay(heartbeat, change)
	if err != nil || bytes.Equal(again, recorded) {
		return nil, err
	}
	var ours, theirs any
	if err := errors.Join(json.Unmarshal(again, &ours), json.Unmarshal(recorded, &theirs)); err != nil {
		return nil, fmt.Errorf("read the result of a heartbeat: %w", err)
	}
	fields := map[string][2]string{}
	flatten("", ours, fields, 0)
	flatten("", theirs, fields, 1)
	var out []replayed.Difference
	for path, values := range fields {
		if values[0] != values[1] {
			out = append(out, replayed.Difference{
				Object: path, Replayed: cmp.Or(values[0], "none"), Recorded: cmp.Or(values[1], "none"),
			})
		}
	}
	slices.SortFunc(out, func(a, b replayed.Difference) int { return cmp.Compare(a.Object, b.Object) })
	return out, nil
}

// flatten notes each value of a JSON document under its path, as one of two documents. A condition has its type in the
// place of its index.
func flatten(path string, value any, into map[string][2]string, of int) {
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			flatten(path+"/"+name, field, into, of)
		}
	case []any:
		for i, item := range value {
			name := fmt.Sprint(i)
			if object, ok := item.(map[string]any); ok && object["type"] != nil {
				name = fmt.Sprint(object["type"])
			}
			flatten(path+"/"+name, item, into, of)
		}
	default:
		both := into[path]
		both[of] = fmt.Sprint(value)
		into[path] = both
	}
}
