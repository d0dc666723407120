package trace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/cmd/quartet/internal/show"
	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
)

const (
	// EnvJaeger is the environment variable with the address of Jaeger.
	EnvJaeger = "QUARTET_JAEGER"

	defaultJaeger = "http://127.0.0.1:16686"
	// defaultWait is twice the time for which the processes batch spans.
	defaultWait = 10 * time.Second
	// pollInterval is the polling interval for missing spans.
	pollInterval = 500 * time.Millisecond
)

// command is one run of quartet trace.
type command struct {
	clock clock.WithTicker
	http  *http.Client
	// locate finds a pod of a node, as show.Locate does.
	locate func(ctx context.Context, node target.Node, namespace, name string) (show.Located, error)
	// style returns the capabilities of a stream.
	style func(io.Writer) style
	// note receives messages beside the result.
	note io.Writer

	node                         target.Node
	namespace, container, jaeger string
	output                       format
	wait                         time.Duration
	all                          bool
}

// Command returns quartet trace.
func Command() *cobra.Command {
	return newCommand(&command{clock: clock.RealClock{}, http: http.DefaultClient, locate: show.Locate, style: styleOf})
}

func newCommand(c *command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace POD",
		Short: "Show the last start of a pod, step by step, from its trace in Jaeger",
		Long: "Show the last start of a pod, step by step, from its trace in Jaeger: the steps of the processes and the runtime\n" +
			"from the change to the pod's Ready, with their times, durations and failures, and the slowest step.\n" +
			"The slowest is the one with the most self time, without its children, of those that the pod waited for.\n\n" +
			"The node knows the trace ID; if it does not run, Jaeger is searched. The services export spans only with\n" +
			"OTEL_EXPORTER_OTLP_ENDPOINT in their environment, with a delay of some seconds: for a pod that has just started,\n" +
			"the command waits for them.",
		Example: "  quartet trace hello\n  quartet trace hello -c web --jaeger http://jaeger.example:16686\n  quartet trace kube-system/dns -o json",
		Args: func(_ *cobra.Command, args []string) error {
			switch len(args) {
			case 1:
				return nil
			case 0:
				return errors.New("name a pod: quartet trace POD; 'quartet get pods' lists them")
			default:
				return fmt.Errorf("name one pod, not %d: quartet trace POD", len(args))
			}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c.note = cmd.ErrOrStderr()
			return c.run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	address := os.Getenv(EnvJaeger)
	if address == "" {
		address = defaultJaeger
	}
	flags.StringVarP(
		&c.namespace,
		"namespace",
		"n",
		"",
		"`NAMESPACE` of the pod; without it the pod is named by NAMESPACE/NAME, or by NAME in \"default\"",
	)
	flags.StringVarP(
		&c.container,
		"container",
		"c",
		"",
		"show the last start of the container `NAME`, not of whatever started last",
	)
	flags.StringVar(&c.jaeger, "jaeger", address, "`URL` of Jaeger's query service; "+EnvJaeger+" sets the default")
	flags.DurationVar(
		&c.wait,
		"wait",
		defaultWait,
		"how long to wait for spans of a start that has just been; 0 prints what is there",
	)
	flags.BoolVar(&c.all, "all", false, "show also the spans of the trace that began after the pod was Ready")
	flags.VarP(&c.output, "output", "o", "`FORMAT` of the output: json")
	c.node.AddFlags(flags)
	return cmd
}

func (c *command) run(ctx context.Context, name string, out io.Writer) error {
	if c.wait < 0 {
		return fmt.Errorf("--wait %s: give a time that is not negative, for example %s", c.wait, defaultWait)
	}
	j, err := newJaeger(c.jaeger, c.http)
	if err != nil {
		return err
	}
	f, err := c.find(ctx, j, name)
	if err != nil {
		return err
	}
	s, err := c.fetch(ctx, j, f)
	if err != nil {
		return err
	}
	if c.output == formatJSON {
		return s.printJSON(out)
	}
	return s.print(out, c.style(out))
}

// fetch fetches the trace of a start. While spans may be missing it retries, until the start is complete.
func (c *command) fetch(ctx context.Context, j *jaeger, f found) (start, error) {
	ticker := c.clock.NewTicker(pollInterval)
	defer ticker.Stop()
	deadline := c.clock.Now().Add(c.wait)
	for reported := -1; ; {
		t, err := j.trace(ctx, f.traceID)
		if err != nil && !errors.Is(err, errNoTrace) {
			return start{}, err
		}
		s := newStart(f.pod, t, c.all)
		s.link, s.now = j.link(f.traceID), c.clock.Now()
		active := f.began
		if err == nil && s.window.to.After(active) {
			active = s.window.to
		}
		// Spans of something that ended long ago have arrived.
		over := !s.now.Before(deadline) || !s.now.Before(active.Add(c.wait))
		switch {
		case err == nil && (over || s.complete()):
			return s, nil
		case over:
			return start{}, c.noTrace(j, f.pod, fmt.Errorf("trace %s, of %s", f.traceID, f.began.Local().Format(time.DateTime)))
		case reported != len(t.spans):
			reported = len(t.spans)
			c.notef(
				"waiting up to %s for the rest of the trace: %s so far",
				deadline.Sub(s.now).Round(time.Second),
				count(reported, "span"),
			)
		}
		select {
		case <-ctx.Done():
			return start{}, fmt.Errorf("waiting for the trace of pod %s: %w", f.pod.name, ctx.Err())
		case <-ticker.C():
		}
	}
}

// notef prints a message beside the result.
func (c *command) notef(form string, args ...any) {
	fmt.Fprintf(c.note, form+"\n", args...)
}
