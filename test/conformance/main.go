// Command conformance runs upstream's node suite, k8s.io/kubernetes/test/e2e_node, with the kubelet of the same release
// and with Quartet in its place. It fails when a spec passes only with the kubelet. "make conformance" builds its
// requirements and runs it.
//
//	go run ./test/conformance                                            # the specs labeled Conformance, three runs
//	go run ./test/conformance -runs quartet -labels '' -focus 'Mirror'   # a choice of specs, Quartet only
//
// Each run has a container runtime, an API server and namespaces of its own (package isolated), so it needs root, and
// no free port. The third run is Quartet again, with one of its four processes killed every few seconds.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/test/isolated"
	"github.com/quartet-node/quartet/test/livenode"
)

// The nodes of a comparison, in the order in which they run.
const (
	// nodeKubelet is the kubelet of the suite's release.
	nodeKubelet = "kubelet"
	// nodeQuartet is Quartet.
	nodeQuartet = "quartet"
	// nodeKilled is Quartet while its processes are killed.
	nodeKilled = "killed"
)

// inside is the first argument of the command that does one run in namespaces of its own.
const inside = "inside"

// specsPerProcessor is the number of parallel specs per processor. Most specs wait.
const specsPerProcessor = 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1) //nolint:gocritic // stop has nothing left to do
	}
}

// options are the options of the command line.
type options struct {
	bin, parts, out string
	runs            []string
	labels, focus   string
	procs           int
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 2 && args[0] == inside {
		var s suite
		if err := json.Unmarshal([]byte(args[1]), &s); err != nil {
			return err
		}
		return s.run(ctx)
	}
	opts, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := cannotRun(opts); err != nil {
		return err
	}
	results := map[string]outcomes{}
	for _, node := range opts.runs {
		fmt.Fprintf(stdout, "%s: running the specs\n", node)
		begin := time.Now()
		result, err := runNode(ctx, opts, node)
		if err != nil {
			return fmt.Errorf("running the specs with %s: %w: its logs are in %s", node, err, filepath.Join(opts.out, node))
		}
		if node == nodeKilled {
			if result, err = repeatCut(ctx, stdout, opts, result); err != nil {
				return fmt.Errorf("running specs again with %s: %w", node, err)
			}
		}
		results[node] = result
		fmt.Fprintf(stdout, "%s: %d of %d specs passed in %v\n", node, result.passed(), len(result), time.Since(begin).Round(time.Second))
		if err := writeJSON(filepath.Join(opts.out, node, "specs.json"), result); err != nil {
			return err
		}
	}
	return compare(stdout, opts, results)
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory with the product and the bundled runtime")
	flags.StringVar(&o.parts, "parts", filepath.Join("bin", "conformance"), "directory with the suite, the kubelet and the images")
	flags.StringVar(&o.out, "out", filepath.Join("bin", "conformance", "results"), "directory for logs and reports, with one directory for each run")
	runs := flags.String("runs", strings.Join([]string{nodeKubelet, nodeQuartet, nodeKilled}, ","), "runs, of those")
	flags.StringVar(&o.labels, "labels", "Conformance", "label filter for the specs, as ginkgo's --label-filter; empty: all")
	flags.StringVar(&o.focus, "focus", "", "regular expression for the names of the specs")
	flags.IntVar(&o.procs, "procs", specsPerProcessor*runtime.NumCPU(), "number of parallel specs")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	for _, path := range []*string{&o.bin, &o.parts, &o.out} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return options{}, err
		}
		*path = abs
	}
	o.runs = strings.Split(*runs, ",")
	for _, node := range o.runs {
		if node != nodeKubelet && node != nodeQuartet && node != nodeKilled {
			return options{}, fmt.Errorf("-runs %s: %q is none of %s, %s and %s", *runs, node, nodeKubelet, nodeQuartet, nodeKilled)
		}
	}
	return o, nil
}

// cannotRun returns an error that names what the machine lacks; nil when it has everything.
func cannotRun(o options) error {
	errs := []error{livenode.CannotRun(o.bin)}
	needed := []string{filepath.Join(o.parts, "bin", "e2e_node.test"), filepath.Join(o.parts, "bin", "ginkgo")}
	for _, node := range o.runs {
		if node == nodeKubelet {
			needed = append(needed, filepath.Join(o.parts, "bin", "kubelet"))
		}
	}
	for _, path := range needed {
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("%w: run make conformance, which builds it", err))
		}
	}
	return errors.Join(append(errs, isolated.CannotRun())...)
}

// runNode does one run and returns the outcome of each spec.
func runNode(ctx context.Context, o options, node string) (_ outcomes, err error) {
	dir, err := os.MkdirTemp("", "quartet-conformance-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := suite{Node: node, Bin: o.bin, Parts: o.parts, Dir: dir, Out: filepath.Join(o.out, node), Procs: o.procs,
		Labels: o.labels, Focus: o.focus}
	if err := errors.Join(os.RemoveAll(s.Out), os.MkdirAll(s.Out, 0o755)); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	description, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if err := isolated.Run(ctx, dir, self, inside, string(description)); err != nil {
		return nil, err
	}
	result, err := readJUnit(filepath.Join(s.Out, junitFile))
	if err == nil && len(result) == 0 {
		err = errors.New("no spec has run: either -labels and -focus select none, or ginkgo.log has the reason")
	}
	return result, err
}

// compare prints the counts and the differences. It fails when a spec passes only with the kubelet; without a run of
// the kubelet, when a spec fails.
func compare(stdout io.Writer, o options, results map[string]outcomes) error {
	printf := func(format string, args ...any) { fmt.Fprintf(stdout, format, args...) }
	printf("\n")
	for _, node := range o.runs {
		printf("%-8s %d of %d specs passed\n", node, results[node].passed(), len(results[node]))
	}
	kubelet, hasKubelet := results[nodeKubelet]
	wrong := 0
	for _, node := range o.runs {
		result := results[node]
		bad, title := result.failed(), "failed with "+node
		switch {
		case node == nodeKubelet: // not a fault of Quartet
		case hasKubelet:
			bad, title = kubelet.onlyIn(result), "passed with the kubelet and not with "+node
		}
		if node != nodeKubelet {
			wrong += len(bad)
		}
		for i, name := range bad {
			if i == 0 {
				printf("\n%s:\n", title)
			}
			printf("  %s\n      %s\n", name, result[name].Why)
		}
	}
	printf("\nthe logs and reports are in %s\n", o.out)
	if wrong > 0 {
		return fmt.Errorf("%d specs failed that should pass", wrong)
	}
	return nil
}

func writeJSON(path string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o644)
}
