package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
)

// rig is what the measured nodes share: a container runtime, in namespaces of its own.
type rig struct {
	// bin has the binaries of make build. dir is an empty directory for everything that the measurement writes. Both are
	// absolute.
	bin, dir string
	layout   layout.Layout
	runtime  *bundle.Bundle
}

func (r *rig) startRuntime(ctx context.Context) (err error) {
	if r.layout, err = layout.New(filepath.Join(r.dir, "runtime")); err != nil {
		return err
	}
	r.runtime = bundle.New(bundle.Config{
		Layout: r.layout, BinDir: r.bin, Logger: slog.New(slog.DiscardHandler),
	})
	if err := r.runtime.Prepare(); err != nil {
		return err
	}
	return errors.Join(r.runtime.Start(ctx), r.runtime.ImportImages(ctx))
}

// stopRuntime ends the runtime. The processes of containers end with the namespaces.
func (r *rig) stopRuntime() error {
	if r.runtime == nil {
		return nil
	}
	return errors.Join(r.runtime.Stop(context.Background()), r.runtime.CleanUp())
}

// removeSandboxes removes every pod from the runtime.
func (r *rig) removeSandboxes(ctx context.Context) error {
	runtime, err := connect(ctx, r.layout.RuntimeEndpoint())
	if err != nil {
		return err
	}
	defer runtime.Close(ctx) //nolint:errcheck // nothing was written that a close could lose
	sandboxes, err := runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	ids := make([]string, 0, len(sandboxes))
	for _, sandbox := range sandboxes {
		ids = append(ids, sandbox.GetId())
	}
	return removeAll(ctx, runtime, ids)
}
