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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/figures"
)

// insideVolumes is the first argument of the command that measures volumes in namespaces of its own.
const insideVolumes = "inside-volumes"

// volumeOptions are the options of the measurement of pods with volumes. All paths are absolute.
type volumeOptions struct {
	// Bin has the binaries of make build, and Kubelet is the real kubelet.
	Bin, Kubelet string
	// Dir is an empty directory for everything that the measurement writes, except Out.
	Dir, Out     string
	Pods, Rounds int
	// Modes are the values of attachRequired to measure.
	Modes []bool
}

// measureVolumes measures pods with a CSI volume each, in turns with the real kubelet and with Quartet. It runs in
// namespaces of its own, because the kubelet has paths that cannot be moved.
func measureVolumes(ctx context.Context, opts options) (err error) {
	if err := cluster.CannotRun(opts.bin); err != nil {
		return err
	}
	v := volumeOptions{Pods: opts.volumes, Rounds: opts.rounds}
	v.Modes = map[string][]bool{"no": {false}, "yes": {true}, "both": {false, true}}[opts.attach]
	if v.Bin, v.Kubelet, v.Out, err = opts.absolute(); err != nil {
		return err
	}
	return runIsolated(ctx, insideVolumes, "quartet-volumes-", func(dir string) any {
		v.Dir = dir
		return v
	})
}

// runVolumes does the measurement inside the namespaces.
func runVolumes(ctx context.Context, description string) (err error) {
	var opts volumeOptions
	if err := json.Unmarshal([]byte(description), &opts); err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	report := Volumes{
		Time: time.Now().UTC().Format(time.RFC3339), CPUs: runtime.NumCPU(), Kernel: kernel(),
		Pods: opts.Pods, Rounds: opts.Rounds,
	}
	r, err := newVolumeRig(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for _, attach := range opts.Modes {
		mode, err := r.compare(ctx, attach)
		if err != nil {
			return fmt.Errorf("attachRequired %t: %w", attach, err)
		}
		report.Modes = append(report.Modes, mode)
	}
	if err := report.print(os.Stdout); err != nil {
		return err
	}
	return write(opts.Out, report)
}

// compare alternates rounds of the kubelet with rounds of Quartet. Which of them begins alternates too.
func (r *volumeRig) compare(ctx context.Context, attach bool) (VolumeMode, error) {
	mode := VolumeMode{Attach: attach}
	for round := range r.opts.Rounds {
		kubelet, quartet := &mode.Kubelet, &mode.Quartet
		turns := []struct {
			name, program string
			node          *VolumeNode
		}{{figures.Kubelet, r.opts.Kubelet, kubelet}, {figures.Quartet, filepath.Join(r.opts.Bin, "quartet"), quartet}}
		if round%2 == 1 {
			turns[0], turns[1] = turns[1], turns[0]
		}
		fmt.Printf("%3d pods with a volume, attachRequired %t, round %d of %d:", r.opts.Pods, attach, round+1, r.opts.Rounds)
		for _, turn := range turns {
			fmt.Printf(" %s…", turn.name)
			result, err := r.turn(ctx, turn.name, turn.program, attach)
			if err != nil {
				return mode, fmt.Errorf("%s: %w", turn.name, err)
			}
			turn.node.Rounds = append(turn.node.Rounds, result)
			fmt.Printf(" %.1f s, %.1f s of CPU;", result.Slowest, result.StartCPU+result.StopCPU)
		}
		fmt.Println()
	}
	mode.summarize()
	return mode, nil
}

// turn measures one node: it starts the node, and one pod, because a node that has just started has caches to fill.
// Then it measures the pods.
func (r *volumeRig) turn(ctx context.Context, name, program string, attach bool) (result VolumeRound, err error) {
	begin := metav1.Now()
	a, err := r.startNode(name, program)
	if err != nil {
		return result, err
	}
	// Neither node has to remove what the other one has left for its garbage collection.
	defer func() { err = errors.Join(err, a.stop(), r.removeSandboxes(context.WithoutCancel(ctx))) }()
	// A kubelet pauses for up to half a minute if a driver is registered before its Node exists.
	if err := r.untilNodeReady(ctx, name, begin); err != nil {
		return result, err
	}
	unregister := r.register(ctx)
	defer func() { err = errors.Join(err, unregister()) }()
	if err := r.untilRegistered(ctx, name); err != nil {
		return result, err
	}
	if _, err := r.round(ctx, a, attach, 1); err != nil {
		return result, fmt.Errorf("the first pod: %w", err)
	}
	if err := rest(ctx, settleTime); err != nil {
		return result, err
	}
	if result, err = r.round(ctx, a, attach, r.opts.Pods); err != nil {
		return result, err
	}
	if wrong := r.wrong(); len(wrong) > 0 {
		return result, fmt.Errorf("the CSI driver says that the node did wrong: %q", wrong)
	}
	return result, nil
}
