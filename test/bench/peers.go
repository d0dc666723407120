package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/figures"
	"github.com/quartet-node/quartet/test/isolated"
)

// insidePeers is the first argument of the command that measures bare calls, the kubelet and Quartet in namespaces of
// their own.
const insidePeers = "inside-peers"

// peerOptions are the options of the measurement beside the kubelet. All paths are absolute.
type peerOptions struct {
	// Bin has the binaries of make build, and Kubelet is the real kubelet.
	Bin, Kubelet string
	// Dir is an empty directory for everything that the measurement writes, except Out.
	Dir, Out string
	Pods     []int
	Rounds   int
	Idle     time.Duration
	// BareAtOnce limits how many pods bare calls start at the same time; 0 is no limit.
	BareAtOnce int
}

// measurePeers measures pods of files with bare calls, with the kubelet and with Quartet, in turns.
func measurePeers(ctx context.Context, opts options) error {
	p := peerOptions{Pods: opts.pods, Rounds: opts.rounds, Idle: opts.idle, BareAtOnce: opts.bareAtOnce}
	var err error
	if p.Bin, p.Kubelet, p.Out, err = opts.absolute(); err != nil {
		return err
	}
	return runIsolated(ctx, insidePeers, "quartet-bench-", func(dir string) any {
		p.Dir = dir
		return p
	})
}

// absolute returns the options that are paths. The last one may be empty.
func (o options) absolute() (bin, kubelet, out string, err error) {
	if _, err := os.Stat(o.kubelet); err != nil {
		return "", "", "", fmt.Errorf("%w: run make bench or make bench-volumes, which build it", err)
	}
	paths := []string{o.bin, o.kubelet, o.out}
	for i, path := range paths {
		if path == "" {
			continue
		}
		if paths[i], err = filepath.Abs(path); err != nil {
			return "", "", "", err
		}
	}
	return paths[0], paths[1], paths[2], nil
}

// runIsolated runs this command again in namespaces of its own, because the kubelet has paths that cannot be moved.
// describe returns its second argument. The directory is removed, unless the command fails.
func runIsolated(ctx context.Context, what, prefix string, describe func(dir string) any) error {
	if err := isolated.CannotRun(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	description, err := json.Marshal(describe(dir))
	if err != nil {
		return err
	}
	if err := isolated.Run(ctx, dir, self, what, string(description)); err != nil {
		return fmt.Errorf("%w: the logs are in %s", err, dir)
	}
	return os.RemoveAll(dir)
}

// runPeers does the measurement inside the namespaces.
func runPeers(ctx context.Context, description string) (err error) {
	var opts peerOptions
	if err := json.Unmarshal([]byte(description), &opts); err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	r, err := newPodRig(ctx, opts.Bin, opts.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(context.WithoutCancel(ctx))) }()
	r.bareAtOnce = opts.BareAtOnce
	report := figures.Report{Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel()}
	var failed error
	for _, pods := range opts.Pods {
		size, err := r.compare(ctx, opts, pods)
		if len(size.Bare) > 0 {
			report.Sizes = append(report.Sizes, size)
		}
		if err != nil {
			failed = fmt.Errorf("%d pods, and no more are measured: %w", pods, err)
			break
		}
	}
	if len(report.Sizes) == 0 {
		return failed // the file of an earlier run stays
	}
	return errors.Join(report.Tables(os.Stdout), write(opts.Out, report), failed)
}

// compare measures bare calls and both nodes with a number of pods, in turns. Each round begins with another of them.
// With an error it returns the rounds before.
func (r *podRig) compare(ctx context.Context, opts peerOptions, pods int) (size figures.Size, err error) {
	size.Pods = pods
	defer size.Summarize()
	turns := []struct{ name, program string }{
		{figures.Bare, ""}, {figures.Kubelet, opts.Kubelet}, {figures.Quartet, filepath.Join(opts.Bin, "quartet")},
	}
	for round := range opts.Rounds {
		fmt.Printf("%3d pods, round %d of %d:", pods, round+1, opts.Rounds)
		results := map[string]figures.Turn{}
		for i := range turns {
			turn := turns[(round+i)%len(turns)]
			fmt.Printf(" %s…", turn.name)
			if err := forget(); err != nil {
				return size, err
			}
			result, err := r.turn(ctx, turn.name, turn.program, pods, opts.Idle)
			if err != nil {
				return size, fmt.Errorf("%s: %w", turn.name, err)
			}
			results[turn.name] = result
			fmt.Printf(" %.2f s;", result.ReadySlowest)
		}
		fmt.Println()
		for name, result := range results {
			all := size.Of(name)
			*all = append(*all, result)
		}
	}
	return size, nil
}

// forget makes the kernel forget what it has cached, so that each turn begins alike. It keeps the memory cgroups of
// ended containers as long as pages of files count for them; with 1,376 of them ten pods took a tenth longer to start.
func forget() error {
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return fmt.Errorf("forget the cgroups of ended containers: %w", err)
	}
	return nil
}

func (r *podRig) turn(ctx context.Context, name, program string, pods int, idle time.Duration) (figures.Turn, error) {
	if name == figures.Bare {
		return r.bareTurn(ctx, pods)
	}
	return r.nodeTurn(ctx, name, program, pods, idle)
}
