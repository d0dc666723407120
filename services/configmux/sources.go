package configmux

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/filesource"
	"github.com/quartet-node/quartet/services/configmux/internal/httpsource"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/replay"
	"github.com/quartet-node/quartet/services/configmux/internal/rotation"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// sources are the configured sources.
type sources struct {
	// all lists the sources in the order of precedence for config maps and secrets of the same name.
	all []source.Source
	// local is the source of applied pods; nil for a replay.
	local *localsource.Source
	// keys rotates the key of secrets; nil with an API server or a replay, where there are none.
	keys *rotation.Rotation
}

// loops returns the loops of the sources that are checked.
func (s sources) loops() []watchdog.Loop {
	var loops []watchdog.Loop
	for _, one := range s.all {
		if checked, is := one.(interface{ Stands() error }); is { // a replay has an end
			loops = append(loops, watchdog.Loop{Name: "source " + one.Name(), Check: checked.Stands})
		}
	}
	return loops
}

// sourcesOf creates the configured sources. A replay is the only source, so that the result depends on nothing else.
func sourcesOf(
	cfg nodeconfig.Config,
	tel *telemetry.Telemetry,
	registry prometheus.Registerer,
	member *membership,
	health *rpc.Health,
	others func() localsource.Others,
) sources {
	if cfg.Replay != "" {
		return sources{all: []source.Source{replay.New(replay.Config{
			Path: cfg.Replay, Speed: cfg.ReplaySpeed, Clock: clock.RealClock{}, Tracer: tel.Tracer, Logger: tel.Logger,
		})}}
	}
	allowed, standalone := privilege.Allowed(cfg.HostPrivileges), member == nil
	seals := sealing.NewKeyring(filepath.Join(cfg.StateDir, keyFile), os.Geteuid())
	seals.Expose(registry)
	pods := appliedPerRunning * int(cfg.Kubelet.MaxPods)
	local := localsource.New(localsource.Config{
		Dir: filepath.Join(
			cfg.StateDir,
			appliedDir,
		),
		Node:       cfg.NodeName,
		Allowed:    allowed,
		Standalone: standalone,
		Seals:      seals,
		MaxPods:    pods,
		MaxObjects: objectsPerPod * pods,
		Others:     others,
		Clock:      clock.RealClock{},
		Tracer:     tel.Tracer,
	})
	out, holders := sources{local: local}, []rotation.Holder{local}
	if path := cfg.Kubelet.StaticPodPath; path != "" {
		file := filesource.New(filesource.Config{
			Path:       path,
			Node:       cfg.NodeName,
			Allowed:    allowed,
			Standalone: standalone,
			Seals:      seals,
			Period:     cfg.Kubelet.FileCheckFrequency.Duration,
			Checkpoint: filepath.Join(cfg.StateDir, checkpointFile),
			Clock:      clock.RealClock{},
			Tracer:     tel.Tracer,
			Logger:     tel.Logger,
			Metrics:    filesource.NewMetrics(registry),
		})
		out.all, holders = append(out.all, file), append(holders, file)
	}
	polls := httpsource.NewMetrics(registry)
	if at := cfg.StaticPodURL(); at != nil {
		out.all = append(out.all, httpsource.New(httpsource.Config{
			URL:        at,
			Header:     cfg.Kubelet.StaticPodURLHeader,
			Node:       cfg.NodeName,
			Allowed:    allowed,
			Standalone: standalone,
			Period:     cfg.Kubelet.HTTPCheckFrequency.Duration,
			Transport:  httpsource.NewTransport(),
			Clock:      clock.RealClock{},
			Tracer:     tel.Tracer,
			Logger:     tel.Logger,
			Metrics:    polls,
		}))
	}
	out.all = append(out.all, local)
	requests := apisource.NewMetrics(registry)
	if member != nil {
		out.all = append(out.all, member.source(cfg, health, requests, tel.Tracer, tel.Logger))
	} else {
		out.keys = rotation.New(seals, holders...)
	}
	return out
}

// served returns the server configuration of the sources.
func (s sources) served(
	cfg nodeconfig.Config,
	desired *mux.Mux,
	opened <-chan struct{},
	logger *slog.Logger,
) server.Config {
	out := server.Config{Desired: desired, Opening: opened}
	if s.local != nil {
		out.Local = s.local
	}
	if s.keys != nil {
		rotate := func(ctx context.Context) (files int, key string, err error) { return s.rotate(ctx, logger) }
		out.Objects = &server.Objects{Held: desired, Local: s.local, Rotate: rotate,
			SecretUIDs: cfg.Users[rights.Secrets], SecretNames: cfg.Network.Names[rights.Secrets]}
	}
	return out
}

// rotate rotates the key of secrets, and logs the result.
func (s sources) rotate(ctx context.Context, logger *slog.Logger) (files int, key string, err error) {
	files, key, err = s.keys.Rotate(ctx)
	if err != nil {
		logger.Warn("the rotation of the key of secrets failed; encrypted secrets stay readable", telemetry.KeyError, err)
	} else if key != "" {
		logger.Info("the key of secrets was rotated", "key", key, "files", files)
	}
	return files, key, err
}

// resume continues an interrupted rotation of the key after the sources were read.
func (s sources) resume(ctx context.Context, opened <-chan struct{}, logger *slog.Logger) {
	if s.keys == nil {
		return
	}
	select {
	case <-opened:
	case <-ctx.Done():
		return
	}
	if err := s.keys.Resume(ctx); err != nil && ctx.Err() == nil {
		logger.Warn(
			"cannot continue the rotation of the key of secrets; repeat it with 'quartet secrets rotate-key'",
			telemetry.KeyError,
			err,
		)
	}
}
