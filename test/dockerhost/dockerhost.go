// Package dockerhost gives tests a Docker engine and docker compose: the engine of this machine if it answers, else an
// engine that is started for the test and leaves nothing behind.
//
// An engine of the test has its directories, socket and process ids below one temporary directory, addresses of its own
// and no default bridge. It does not write rules into the packet filter or set up forwarding, so that it does not
// interfere with another engine or with the subject of other tests. Its containers reach each other and the machine,
// and nothing else. Published ports work through the engine's own proxy.
//
// A test skips with the reason when the machine lacks something that it needs; with CI=true it fails instead.
package dockerhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/harness"
)

const (
	// defaultEndpoint is the address of an engine without DOCKER_HOST.
	defaultEndpoint = "unix:///var/run/docker.sock"
	// commandTimeout bounds one command. compose waits for health checks, and waits up to ten seconds for the end of a
	// container.
	commandTimeout = 5 * time.Minute
	// pipePatience is how long children of a killed command may keep its output open.
	pipePatience = 5 * time.Second
)

// Host is an engine for one test.
type Host struct {
	// Endpoint is the engine's address, "unix://" and a path.
	Endpoint string
	// Own is true when the test has started the engine, so that nothing else uses it.
	Own bool
	// APIVersion is the newest API version of the engine. compose 5.1 uses a newer one than Debian's engine has.
	APIVersion string

	// configDir is an empty directory that replaces the user's configuration of the docker command.
	configDir string
	// kept counts the images of others that have a second name during the test.
	kept int
}

// Start returns the engine of this machine, or an engine of the test when none answers.
func Start(t testing.TB) *Host {
	t.Helper()
	requirements(t)
	endpoint := os.Getenv("DOCKER_HOST")
	if endpoint == "" {
		endpoint = defaultEndpoint
	}
	h := &Host{Endpoint: endpoint, configDir: t.TempDir()}
	// The containers of tests bind directories of this machine, which a remote engine does not have.
	if strings.HasPrefix(endpoint, "unix://") && h.ask() == nil {
		t.Logf("dockerhost: the engine at %s answers and is used", endpoint)
		return h
	}
	return StartOwn(t)
}

// StartOwn starts an engine for the test alone, beside the engine that the machine may have.
func StartOwn(t testing.TB) *Host {
	t.Helper()
	requirements(t)
	if _, err := exec.LookPath("dockerd"); err != nil {
		harness.Require(t, errors.New("dockerd is missing: apt-get install docker.io"))
	}
	e := startEngine(t)
	h := &Host{Endpoint: "unix://" + e.socket(), Own: true, configDir: t.TempDir()}
	t.Cleanup(func() {
		h.removeEverything(t)
		e.stop(t)
	})
	e.await(t, h.ask)
	return h
}

// requirements checks the requirements of every test with an engine.
func requirements(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.Require(t, errors.New("a Docker engine needs root: run the test as root"))
	}
	if _, err := exec.LookPath("docker"); err != nil {
		harness.Require(t, errors.New("the docker command is missing: apt-get install docker.io docker-cli"))
	}
}

// ask asks the engine for its API version. It fails while the engine does not answer.
func (h *Host) ask() error {
	out, err := h.run("docker", nil, "version", "--format", "{{.Server.APIVersion}}")
	if err != nil {
		return err
	}
	h.APIVersion = strings.TrimSpace(out)
	return nil
}

// Env returns the environment for a program that uses this engine.
func (h *Host) Env() []string {
	env := append(os.Environ(), "DOCKER_HOST="+h.Endpoint, "DOCKER_CONFIG="+h.configDir)
	if h.APIVersion != "" {
		env = append(env, "DOCKER_API_VERSION="+h.APIVersion)
	}
	return env
}

// Docker runs the docker command and returns its standard output. A failure fails the test.
func (h *Host) Docker(t testing.TB, args ...string) string {
	t.Helper()
	out, err := h.TryDocker(args...)
	if err != nil {
		t.Fatalf("dockerhost: %v", err)
	}
	return out
}

// TryDocker is Docker for a command that may fail; the error includes its output.
func (h *Host) TryDocker(args ...string) (string, error) {
	return h.run("docker", nil, args...)
}

// Compose runs docker compose of the build (tools/compose) with additional environment variables, NAME=VALUE, which
// override those of an .env file. It returns the standard output; a failure fails the test.
func (h *Host) Compose(t testing.TB, env []string, args ...string) string {
	t.Helper()
	out, err := h.TryCompose(t, env, args...)
	if err != nil {
		t.Fatalf("dockerhost: %v", err)
	}
	return out
}

// TryCompose is Compose for a command that may fail; the error includes its output.
func (h *Host) TryCompose(t testing.TB, env []string, args ...string) (string, error) {
	t.Helper()
	compose := filepath.Join(harness.BinDir(t), "tools", "docker-compose")
	if _, err := os.Stat(compose); err != nil {
		harness.Require(t, fmt.Errorf("%w: run make test-tools", err))
	}
	return h.run(compose, env, args...)
}

func (h *Host) run(program string, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(h.Env(), env...)
	cmd.WaitDelay = pipePatience
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("it did not end within %v", commandTimeout)
		}
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}
