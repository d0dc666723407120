package show

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// description is everything that the node knows about one pod.
type description struct {
	podView
	// target is the place that its source reads; empty if unknown.
	target string
	// work is the state of its worker; nil if it has none.
	work *enginev1.Worker
	// events are the pod's events, the latest last.
	events []podEvent
}

// describeFormat is a format of a description: text, JSON or YAML.
type describeFormat struct{ format }

// Set implements pflag.Value.
func (f *describeFormat) Set(text string) error {
	if text != string(formatJSON) && text != string(formatYAML) {
		return errors.New("must be json or yaml")
	}
	return f.format.Set(text)
}

func (a *querier) describeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe pod|node|pvc|storageclass [NAME...]",
		Short: "Show everything that is known about a pod, the node, a persistent volume claim or a storage class",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("say what to describe: " + cmd.CommandPath() + " pod NAME, node, pvc NAME or storageclass NAME")
			}
			return fmt.Errorf("there is no %q to describe: %s describes pods, the node, pvc and storageclasses", args[0],
				cmd.CommandPath())
		},
		// Args refuses a call without arguments.
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	cmd.AddCommand(a.describePodCommand(), a.describeNodeCommand(), a.describeClaimCommand(), a.describeClassCommand())
	return cmd
}

func (a *querier) describePodCommand() *cobra.Command {
	var output describeFormat
	var s selection
	cmd := &cobra.Command{
		Use:     "pod [NAME...]",
		Aliases: []string{"pods", "po"},
		Short:   "Show everything that the node knows about a pod",
		Long: "Show everything that the node knows about a pod: a summary of its spec, its status and that of its containers with\n" +
			"reasons, the activity and errors of its worker, the phases of its start, and its events. Without a name\n" +
			"all pods are described.\n\n" +
			"Values of the environment in the pod are shown, those from secrets are not.",
		Example: "  quartet describe pod hello-" + hostname() + "\n  quartet describe pod -n kube-system -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			s.names = args
			if err := s.check(); err != nil {
				return err
			}
			return a.describePods(cmd, output.format, s)
		},
	}
	addNamespace(cmd.Flags(), &s.namespace)
	a.addFlags(cmd, nil, nil)
	cmd.Flags().VarP(&output, "output", "o", "`FORMAT` of the output: json or yaml")
	return cmd
}

func (a *querier) describePods(cmd *cobra.Command, output format, s selection) error {
	views, err := a.listPods(cmd.Context())
	if err != nil {
		return err
	}
	if views, err = s.choose(views); err != nil {
		return err
	}
	if len(views) == 0 && output.isTable() {
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "There are no pods %s.\n", s.where())
		return err
	}
	all, err := a.describe(cmd.Context(), views)
	if err != nil {
		return err
	}
	if !output.isTable() {
		return printDescriptions(cmd.OutOrStdout(), output, all, len(s.names) == 1)
	}
	for i, d := range all {
		p := newPage()
		if i > 0 {
			p.line(0, "\n")
		}
		d.print(p, a.clock.Now())
		if err := p.writeTo(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	return nil
}

// describe reads the additional facts about pods. Without configmux, the targets of their sources are unknown.
func (a *querier) describe(ctx context.Context, views []podView) ([]description, error) {
	workers, err := a.listWorkers(ctx)
	if err != nil {
		return nil, err
	}
	events, err := a.listPodEvents(ctx)
	if err != nil {
		return nil, err
	}
	targets := map[string]string{}
	if sources, err := a.listSources(ctx); err == nil {
		for _, s := range sources.GetSources() {
			targets[s.GetName()] = s.GetTarget()
		}
	}
	all := make([]description, 0, len(views))
	for _, v := range views {
		d := description{podView: v, target: targets[v.source]}
		for _, w := range workers.GetWorkers() {
			if w.GetPodUid() == string(v.pod.UID) {
				d.work = w
			}
		}
		for _, e := range events {
			if e.InvolvedObject.UID == v.pod.UID {
				d.events = append(d.events, e)
			}
		}
		slices.SortStableFunc(d.events, func(x, y podEvent) int {
			return x.received.GetLastSeenAt().AsTime().Compare(y.received.GetLastSeenAt().AsTime())
		})
		all = append(all, d)
	}
	return all, nil
}

// printedDescription is a description in JSON and YAML.
type printedDescription struct {
	Pod    *v1.Pod         `json:"pod"`
	Source string          `json:"source,omitempty"`
	Target string          `json:"sourceTarget,omitempty"`
	Worker json.RawMessage `json:"worker,omitempty"`
	Events []*v1.Event     `json:"events"`
}

// printDescriptions prints one description, or all of them under "items".
func printDescriptions(out io.Writer, output format, all []description, single bool) error {
	var list struct {
		Items []printedDescription `json:"items"`
	}
	list.Items = []printedDescription{}
	for _, d := range all {
		printed := printedDescription{Pod: d.pod, Source: d.source, Target: d.target, Events: []*v1.Event{}}
		if d.work != nil {
			var err error
			if printed.Worker, err = (protojson.MarshalOptions{EmitDefaultValues: true}).Marshal(d.work); err != nil {
				return err
			}
		}
		for _, e := range d.events {
			printed.Events = append(printed.Events, e.Event)
		}
		list.Items = append(list.Items, printed)
	}
	var document any = list
	if single {
		document = list.Items[0]
	}
	return printDocument(out, output, document)
}

// printDocument prints a document with parts from protojson as JSON or YAML.
func printDocument(out io.Writer, output format, document any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text) // it removes the white space of protojson, which varies on purpose
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "    ")
	if err := encoder.Encode(document); err != nil {
		return err
	}
	data := text.Bytes()
	if output == formatYAML {
		var err error
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
	}
	_, err := out.Write(data)
	return err
}
