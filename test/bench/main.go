// Command bench compares a Quartet node with bare CRI calls on the same containerd, in one run, and prints ratios.
//
// For each number of pods it measures the time from the rename of the manifests into place until /pods shows the pods
// Ready, and the time for the same pods with only the necessary CRI calls: sandbox, container, start. The rounds
// alternate, so that both see the same machine. In the same way it measures the time from the removal of the manifests
// until nothing of the pods runs and, with the largest number of pods, the time from the exit of a container until
// another one runs in its place. Then it leaves the node idle with the largest number of pods and reads the memory and
// the processor time of the four processes from /proc.
//
// With -volumes it measures something else instead: pods with a staged CSI volume each, in turns with the real kubelet.
//
// It needs root and the binaries of `make build`; it uses a state directory of its own and removes it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

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
	// volumes is the number of pods with a volume. If it is not 0, only these are measured, beside the kubelet.
	volumes int
	kubelet string
	// attach selects the drivers: those that need an attachment ("yes"), those that do not ("no"), or "both".
	attach string
}

func run(ctx context.Context, args []string) (err error) {
	if len(args) == 2 && args[0] == insideVolumes {
		return runVolumes(ctx, args[1])
	}
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := livenode.CannotRun(opts.bin); err != nil {
		return err
	}
	if opts.volumes > 0 {
		return measureVolumes(ctx, opts)
	}
	if opts.hollow > 0 {
		result, err := measureHollow(ctx, opts)
		if err != nil {
			return err
		}
		return errors.Join(result.print(os.Stdout), write(opts.out, result))
	}
	node, err := newNode(ctx, opts.bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Remove(context.WithoutCancel(ctx))) }()

	report := Report{Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel()}
	for _, pods := range opts.pods {
		result, err := compare(ctx, node, pods, rounds(opts.rounds, pods))
		if err != nil {
			return fmt.Errorf("%d pods: %w", pods, err)
		}
		report.Starts = append(report.Starts, result)
	}
	for _, pods := range opts.pods {
		result, err := compareDeletes(ctx, node, pods, rounds(opts.rounds/2, pods))
		if err != nil {
			return fmt.Errorf("%d pods deleted: %w", pods, err)
		}
		report.Deletes = append(report.Deletes, result)
	}
	most := opts.pods[len(opts.pods)-1]
	if report.Deaths, err = compareDeaths(ctx, node, most); err != nil {
		return fmt.Errorf("%d container exits: %w", most, err)
	}
	if report.Idle, err = measureIdle(ctx, node, most, opts.idle); err != nil {
		return fmt.Errorf("idle with %d pods: %w", most, err)
	}
	if err := report.print(os.Stdout); err != nil {
		return err
	}
	return write(opts.out, report)
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
	flags.IntVar(&opts.rounds, "rounds", 10, "rounds for one pod; more pods take fewer")
	flags.DurationVar(&opts.idle, "idle", 30*time.Second, "duration of the measurement of the idle node")
	flags.IntVar(&opts.hollow, "hollow", 0, "measure only this number of hollow nodes (four processes each, on a runtime without containers) against one API server")
	flags.IntVar(&opts.volumes, "volumes", 0, "measure only this number of pods with a staged volume each, in turns with the kubelet and with Quartet")
	flags.StringVar(&opts.kubelet, "kubelet", "bin/conformance/bin/kubelet", "the kubelet, for -volumes")
	flags.StringVar(&opts.attach, "attach", "both", "values of attachRequired for -volumes: no, yes or both")
	list := flags.String("pods", "1,10,100", "numbers of pods to start at once, smallest first")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	for text := range strings.SplitSeq(*list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 {
			return options{}, fmt.Errorf("-pods %q: want positive numbers, separated by commas", *list)
		}
		opts.pods = append(opts.pods, n)
	}
	if opts.hollow < 0 || opts.volumes < 0 {
		return options{}, fmt.Errorf("-hollow %d, -volumes %d: want 0 or more", opts.hollow, opts.volumes)
	}
	if opts.attach != "no" && opts.attach != "yes" && opts.attach != "both" {
		return options{}, fmt.Errorf("-attach %q: want no, yes or both", opts.attach)
	}
	if opts.rounds < 1 {
		return options{}, fmt.Errorf("-rounds %d: want at least 1", opts.rounds)
	}
	return opts, nil
}

// rounds returns fewer rounds for large numbers of pods, because one round of a hundred pods has a hundred samples.
func rounds(forOne, pods int) int {
	const least = 2
	return max(least, int(float64(forOne)/math.Sqrt(float64(pods))))
}

// compare alternates rounds of bare CRI calls with rounds of the node.
func compare(ctx context.Context, node *node, pods, rounds int) (Start, error) {
	result := Start{Pods: pods, Rounds: rounds}
	for round := range rounds {
		fmt.Printf("%3d pods, round %d of %d: bare CRI calls…", pods, round+1, rounds)
		bare, err := node.bareRound(ctx, pods)
		if err != nil {
			return Start{}, fmt.Errorf("bare CRI calls: %w", err)
		}
		fmt.Printf(" %.2f s; Quartet…", slowest(bare))
		quartet, err := node.quartetRound(ctx, pods)
		if err != nil {
			return Start{}, fmt.Errorf("quartet: %w", err)
		}
		fmt.Printf(" %.2f s\n", slowest(quartet))
		result.bare = append(result.bare, bare...)
		result.quartet = append(result.quartet, quartet...)
		result.slowestBare = append(result.slowestBare, slowest(bare))
		result.slowestQuartet = append(result.slowestQuartet, slowest(quartet))
	}
	result.summarize()
	return result, nil
}

func kernel() string {
	data, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}
