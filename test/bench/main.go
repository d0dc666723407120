// Command bench compares a Quartet node with the real kubelet, and with the calls of the runtime that a node cannot do
// without, on the same containerd, in one run, and prints ratios.
//
// For each number of pods and in each round it measures bare calls, the kubelet and Quartet in turns, with the same
// manifests and the same configuration, in namespaces of their own: the time from the rename of the manifests into
// place until /pods shows the pods Ready, and the processor time until then; the node at rest; the time from the kill
// of a container until its successor is Ready; the time from the kill of the node until, started again, it has a new
// pod Ready; the time from the removal of the manifests until nothing of the pods runs.
//
// With -volumes it measures pods with a staged CSI volume each, beside the kubelet, with -hollow many nodes of one API
// server, with -costs what each pod costs among few and among many, and with -site one configmux for many nodes beside
// a watch for each node.
//
// With -tables it measures nothing, but writes the tables of the documents from the file of an earlier run.
//
// It needs root, the binaries of `make build`, and a kubelet; it uses a directory of its own and removes it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/test/figures"
	"github.com/quartet-node/quartet/test/livenode"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	bin    string
	out    string
	pods   []int
	rounds int
	idle   time.Duration
	// hollow is the number of hollow nodes. If it is not 0, only hollow nodes are measured.
	hollow int
	// site is the number of nodes of a site. If it is not 0, only a site is measured.
	site int
	// costs are numbers of pods whose costs are compared. If there are any, only these are measured.
	costs []int
	// volumes is the number of pods with a volume. If it is not 0, only these are measured, beside the kubelet.
	volumes int
	kubelet string
	// bareAtOnce limits how many pods bare calls start at the same time; 0 is no limit.
	bareAtOnce int
	// tables is true if only the tables of the documents are written.
	tables bool
	// attach selects the drivers: those that need an attachment ("yes"), those that do not ("no"), or "both".
	attach string
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 {
		switch args[0] {
		case insideVolumes:
			return runVolumes(ctx, args[1])
		case insidePeers:
			return runPeers(ctx, args[1])
		}
	}
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if opts.tables {
		return updateTables(opts.out)
	}
	if err := livenode.CannotRun(opts.bin); err != nil {
		return err
	}
	if opts.volumes > 0 {
		return measureVolumes(ctx, opts)
	}
	if opts.site > 0 {
		result, err := measureSite(ctx, opts)
		if err != nil {
			return err
		}
		return errors.Join(result.print(os.Stdout), write(opts.out, result))
	}
	if len(opts.costs) > 0 {
		result, err := measureCosts(ctx, opts)
		if err != nil {
			return err
		}
		return errors.Join(result.print(os.Stdout), write(opts.out, result))
	}
	if opts.hollow > 0 {
		result, err := measureHollow(ctx, opts)
		if err != nil {
			return err
		}
		return errors.Join(result.print(os.Stdout), write(opts.out, result))
	}
	return measurePeers(ctx, opts)
}

// updateTables writes the tables of the documents from a report of an earlier run.
func updateTables(file string) error {
	report, err := figures.Read(file)
	if err != nil {
		return err
	}
	return errors.Join(
		figures.Update("README.md", "summary", report.Summary),
		figures.Update(filepath.Join("docs", "reference", "benchmarks.md"), "tables", report.Tables),
	)
}

// write writes figures as JSON into a file. Without a name it is a no-op.
func write(out string, figures any) error {
	if out == "" {
		return nil
	}
	data, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := os.WriteFile(out, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	fmt.Println("\nwritten as JSON to", out)
	return nil
}

func parse(args []string) (options, error) {
	var opts options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&opts.bin, "bin", "bin", "directory of the binaries of make build")
	flags.StringVar(&opts.out, "out", "bench.json", "file for the figures as JSON; empty: none")
	flags.IntVar(&opts.rounds, "rounds", 3, "rounds for each number of pods")
	flags.DurationVar(&opts.idle, "idle", 30*time.Second, "duration of the measurement of a node at rest")
	flags.IntVar(&opts.hollow, "hollow", 0, "measure only this number of hollow nodes (four processes each, on a runtime without containers) against one API server")
	flags.IntVar(&opts.site, "site", 0, "measure only one configmux for this number of nodes against one API server, and a watch for each node")
	flags.IntVar(&opts.volumes, "volumes", 0, "measure only this number of pods with a staged volume each, in turns with the kubelet and with Quartet")
	flags.StringVar(&opts.kubelet, "kubelet", "bin/conformance/bin/kubelet", "the kubelet; not for -hollow")
	flags.IntVar(&opts.bareAtOnce, "bare-at-once", 0, "most pods that bare calls start at the same time; 0: all")
	flags.StringVar(&opts.attach, "attach", "both", "values of attachRequired for -volumes: no, yes or both")
	flags.BoolVar(&opts.tables, "tables", false, "measure nothing, but write the tables of README.md and docs/reference/benchmarks.md from the file of -out")
	list := flags.String("pods", "1,10,100,300", "numbers of pods to start at once")
	costs := flags.String("costs", "", "measure only what each pod costs among these numbers of pods, for example 10,500, on nodes with a runtime without containers")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	var err error
	if opts.pods, err = numbers("pods", *list); err != nil {
		return options{}, err
	}
	if *costs != "" {
		if opts.costs, err = numbers("costs", *costs); err != nil {
			return options{}, err
		}
	}
	if opts.hollow < 0 || opts.volumes < 0 || opts.bareAtOnce < 0 {
		return options{}, fmt.Errorf("-hollow %d, -volumes %d, -bare-at-once %d: want 0 or more", opts.hollow, opts.volumes, opts.bareAtOnce)
	}
	if opts.attach != "no" && opts.attach != "yes" && opts.attach != "both" {
		return options{}, fmt.Errorf("-attach %q: want no, yes or both", opts.attach)
	}
	if opts.rounds < 1 {
		return options{}, fmt.Errorf("-rounds %d: want at least 1", opts.rounds)
	}
	return opts, nil
}

// numbers returns the numbers of a flag.
func numbers(name, list string) ([]int, error) {
	var all []int
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("-%s %q: want positive numbers, separated by commas", name, list)
		}
		all = append(all, n)
	}
	return all, nil
}

func kernel() string {
	data, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}
