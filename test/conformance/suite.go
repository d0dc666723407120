package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/isolated"
	"github.com/quartet-node/quartet/test/livenode"
)

// baseConfig is the base configuration of every kubelet; the suite merges its own fields into it. It is the suite's
// default, with both cgroup versions allowed, and without evictions because of the load of the machine.
const baseConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
volumeStatsAggPeriod: 10s
serializeImagePulls: false
fileCheckFrequency: 10s
podCIDR: 10.100.0.0/24
evictionPressureTransitionPeriod: 30s
` + livenode.NoEviction

const (
	// maxTime bounds a run of ginkgo.
	maxTime = "2h"
	// junitFile is the report of a run in its directory.
	junitFile = "junit.xml"
	// jsonFile is the same report as JSON, with the time of each failure.
	jsonFile = "report.json"
	// killsFile is the log of the kills of a run.
	killsFile = "kills.log"
)

// suite is one run of upstream's node suite inside the environment of package isolated.
type suite struct {
	// Node selects the node: nodeKubelet, nodeQuartet or nodeKilled.
	Node string
	// Bin has the product and the bundled runtime, Parts the requirements of the suite.
	Bin, Parts string
	// Dir is the temporary directory of the run; Out keeps its logs and its report.
	Dir, Out string
	// Procs is the number of parallel specs.
	Procs int
	// Labels and Focus select specs as ginkgo does; an empty one selects all.
	Labels, Focus string
}

// run runs the suite on a runtime of its own. A failed spec is no error; a suite that could not run is one.
func (s suite) run(ctx context.Context) (err error) {
	l, err := layout.New(s.Dir)
	if err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(s.Parts, "images", "*.tar"))
	if err != nil {
		return err
	}
	trust, err := serveImages(ctx, s.Dir, archives)
	if err != nil {
		return err
	}
	// containerd inherits this environment. It pulls from no other registry, because this network has no route to the
	// outside.
	if err := os.Setenv("SSL_CERT_FILE", trust); err != nil {
		return err
	}
	runtime := bundle.New(bundle.Config{
		Layout: l, BinDir: s.Bin, Logger: slog.New(slog.DiscardHandler),
		Note: func(note string) { fmt.Println("  " + note) },
	})
	if err := runtime.Prepare(); err != nil {
		return err
	}
	if err := addHandler(filepath.Join(l.Runtime(), "config.toml")); err != nil {
		return err
	}
	if err := errors.Join(runtime.Start(ctx), runtime.ImportImages(ctx)); err != nil {
		return err
	}
	if err := s.importImages(ctx, l, archives); err != nil {
		return err
	}
	cmd, err := s.command(ctx, l)
	if err != nil {
		return err
	}
	return s.watch(ctx, cmd)
}

// importImages imports the images that the specs use. They are pinned, because a kubelet removes unused images.
func (s suite) importImages(ctx context.Context, l layout.Layout, archives []string) error {
	for _, archive := range archives {
		cmd := exec.CommandContext(ctx, filepath.Join(l.Runtime(), "bin", "ctr"), "--address", l.RuntimeSocket(),
			"--namespace", "k8s.io", "images", "import", "--label", "io.cri-containerd.pinned=pinned", archive)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w\n%s", archive, err, out)
		}
	}
	return nil
}

// command returns the command that runs ginkgo with the suite. Ginkgo runs the suite in the suite's own directory,
// which the suite writes into. The suite also expects the kubelet there, by the name "kubelet".
func (s suite) command(ctx context.Context, l layout.Layout) (*exec.Cmd, error) {
	work := filepath.Join(s.Dir, "work")
	program, kubeletFlags := filepath.Join(s.Bin, "quartet"), "--allow-unauthenticated-api"
	if s.Node == nodeKubelet {
		program, kubeletFlags = filepath.Join(s.Parts, "bin", "kubelet"), ""
	}
	config, suite := filepath.Join(work, "kubeletconfig.yaml"), filepath.Join(work, "e2e_node.test")
	if err := errors.Join(
		os.Mkdir(work, 0o755),
		os.Symlink(program, filepath.Join(work, "kubelet")),
		os.Symlink(filepath.Join(s.Parts, "bin", "e2e_node.test"), suite),
		os.WriteFile(config, []byte(baseConfig), 0o600),
	); err != nil {
		return nil, err
	}
	args := []string{
		"--procs=" + strconv.Itoa(s.Procs), "-v", "--no-color", "--timeout=" + maxTime,
		"--output-dir=" + s.Out, "--junit-report=" + junitFile, "--json-report=" + jsonFile, "--label-filter=" + s.Labels, "--focus=" + s.Focus,
		suite, "--",
		"--container-runtime-endpoint=" + l.RuntimeEndpoint(), "--prepull-images=false",
		"--report-dir=" + s.Out, "--kubelet-config-file=" + config,
		// Without these empty values the kubelet would move every process of the machine into a cgroup for the system.
		"--kubelet-flags=--system-cgroups= --kubelet-cgroups= " + kubeletFlags,
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.Parts, "bin", "ginkgo"), args...)
	cmd.Dir = work
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // ginkgo then writes its report
	cmd.WaitDelay = isolated.Goodbye
	return cmd, nil
}

// watch runs ginkgo, prints its progress, and in a run with kills kills processes of Quartet meanwhile.
func (s suite) watch(ctx context.Context, cmd *exec.Cmd) (err error) {
	log, err := os.Create(filepath.Join(s.Out, "ginkgo.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if s.Node == nodeKilled {
		kills, err := os.Create(filepath.Join(s.Out, killsFile))
		if err != nil {
			cancel()
			return err
		}
		defer func() { err = errors.Join(err, kills.Close()) }()
		wg.Go(func() { killAtRandom(ctx, services(), kills) })
	}
	var followErr error
	wg.Go(func() { followErr = follow(reader, log, os.Stdout) })

	runErr := cmd.Run()
	cancel()
	closeErr := writer.Close()
	wg.Wait()
	var exit *exec.ExitError
	if errors.As(runErr, &exit) {
		runErr = nil // specs have failed; the report names them
	}
	return errors.Join(runErr, closeErr, followErr)
}

// services returns the names of the four processes.
func services() []string {
	all := layout.Services()
	names := make([]string, 0, len(all))
	for _, s := range all {
		names = append(names, string(s))
	}
	return names
}
