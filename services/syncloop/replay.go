package syncloop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/player"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/shadow"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// Replay runs the decisions of syncloop against a recording of a node.
type Replay struct {
	// File is the recording, and Config the path of a KubeletConfiguration; empty for the defaults, and the number of pods
	// of the recorded node.
	File, Config string
	// Speed is how many times faster than recorded it runs.
	Speed float64
	// Step is called with each change before it is given; nil gives them at their time.
	Step func(text string) error
	// JSON prints JSON instead of text to Out. Log is for warnings.
	JSON     bool
	Out, Log io.Writer
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
	settings, err := r.settings()
	if err != nil {
		return 0, err
	}
	played, err := player.New(player.Config{Entries: entries, Speed: r.Speed, Step: r.Step})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", r.File, err)
	}
	if settings.Machine, err = recordedMachine(entries); err != nil {
		return 0, fmt.Errorf("%s: %w", r.File, err)
	}
	dir, remove, err := shadow.Scratch()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	settings.Dir = dir
	printer := shadow.NewPrinter(r.Out, r.JSON)
	var printing error
	settings.Report = func(d shadow.Difference) { printing = errors.Join(printing, printer.Difference(d)) }
	summary, err := played.Play(ctx, settings)
	if err := errors.Join(err, printing); err != nil {
		return 0, err
	}
	return summary.Total(), printer.Summary(summary)
}

// settings returns what the configuration decides.
func (r Replay) settings() (shadow.Config, error) {
	args := []string{"--shadow", "--hostname-override=recorded"}
	if r.Config != "" {
		args = append(args, "--config="+r.Config)
	}
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, args, io.Discard)
	if err != nil {
		return shadow.Config{}, err
	}
	logger := slog.New(slog.NewTextHandler(r.Log, &slog.HandlerOptions{Level: slog.LevelError}))
	settings, err := shadowSettings(cfg, logger)
	if err != nil {
		return shadow.Config{}, err
	}
	if r.Config != "" {
		settings.MaxPods, settings.PodsPerCore = int64(cfg.Kubelet.MaxPods), int64(cfg.Kubelet.PodsPerCore)
	}
	settings.Wait = nodeconfig.DefaultShadowWait
	return settings, nil
}

// recordedMachine returns the features of the machine of a recording. Whether it has AppArmor is not known.
func recordedMachine(entries []noderecording.Entry) (admission.Machine, error) {
	for _, e := range entries {
		if e.Part != noderecording.Node || e.Value == nil {
			continue
		}
		node, err := nodewatch.Decode(player.NodeOf(e))
		if err != nil {
			return admission.Machine{}, err
		}
		kernel, err := version.ParseGeneric(node.Status.NodeInfo.KernelVersion)
		if err != nil {
			return admission.Machine{}, fmt.Errorf("read the version of the node's kernel: %w", err)
		}
		return admission.Machine{AppArmor: true, Kernel: kernel}, nil
	}
	return admission.Machine{}, errors.New("there is no Node in the recording: record again, for longer")
}
