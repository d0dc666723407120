// Package livenode drives a whole node as a user would: by the built command line, manifests in a directory and the
// read-only API. The node has a state directory and a port of its own, so that it runs beside any other node of the
// machine. The package does not depend on testing.T, because the benchmark uses it too.
package livenode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/freeport"
)

// Image is the image of the example program, which the build creates.
const Image = "quartet.local/hello:1"

// NoEviction has the fields of a KubeletConfiguration that keep a node from refusing and evicting pods and from
// removing images when the memory or the disk of the machine is short, because tests do not depend on the load of the
// machine. A test of evictions has a file system of its own.
const NoEviction = `evictionHard:
  memory.available: 0%
  nodefs.available: 0%
  nodefs.inodesFree: 0%
  imagefs.available: 0%
  imagefs.inodesFree: 0%
imageGCHighThresholdPercent: 100
`

// AnyMachine is NoEviction with the fields that let a node run on a machine with swap, and without iptables chains of
// its own.
const AnyMachine = `failSwapOn: false
makeIPTablesUtilChains: false
` + NoEviction

// Node is a node in a state directory of its own.
type Node struct {
	// Layout has the paths of its files.
	Layout layout.Layout
	// Env is added to this process's environment for its processes.
	Env []string
	// Flags are passed to "quartet up" by Up, beside those that keep the node apart from others: --kubeconfig for example.
	// Without a --config among them the node has a configuration of AnyMachine, and its own port for the API of a node
	// of a cluster, because packages are tested in parallel.
	Flags []string

	quartet string
	port    string
	healthz string
	api     int
}

// Bin returns the directory of the built binaries, for tests in a folder two below the repository's: QUARTET_BIN, else
// bin.
func Bin() string {
	if dir := os.Getenv("QUARTET_BIN"); dir != "" {
		return dir
	}
	return filepath.Join("..", "..", "bin")
}

// CannotRun returns an error that names why this machine cannot run a node from the binaries in a directory, and what
// to do; nil when it can.
func CannotRun(bin string) error {
	if os.Geteuid() != 0 {
		return errors.New("containers need root: run it as root, for example with sudo")
	}
	if _, err := os.Stat(filepath.Join(bin, "containerd")); err != nil {
		return fmt.Errorf("%s is missing: run 'make build' first", filepath.Join(bin, "containerd"))
	}
	return nil
}

// New creates the state directory, whose name begins with quartet- and the purpose. It starts no process.
func New(bin, purpose string) (*Node, error) {
	dir, err := os.MkdirTemp("", "quartet-"+purpose+"-")
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	return At(bin, dir)
}

// At returns the node of a state directory, which may have been that of a node before a restart of the machine. It
// starts no process.
func At(bin, dir string) (*Node, error) {
	l, err := layout.New(dir)
	if err != nil {
		return nil, err
	}
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	healthz, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	api, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	return &Node{
		Layout: l, quartet: filepath.Join(bin, "quartet"), port: strconv.Itoa(port), healthz: strconv.Itoa(healthz), api: api,
	}, nil
}

// Port returns the port of its read-only API.
func (n *Node) Port() string { return n.port }

// HealthzPort returns the port of its health check.
func (n *Node) HealthzPort() string { return n.healthz }

// Command runs the command line against the node, and returns the output of both streams. Its error includes the
// output.
func (n *Node) Command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.quartet, append(args, "--state-dir", n.Layout.StateDir())...)
	cmd.Env = append(os.Environ(), n.Env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("quartet %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Import imports the image of an archive and pins it.
func (n *Node) Import(ctx context.Context, archive string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(n.Layout.Runtime(), "bin", "ctr"), "--address", n.Layout.RuntimeSocket(),
		"--namespace", "k8s.io", "images", "import", "--label", "io.cri-containerd.pinned=pinned", archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import %s: %w\n%s", archive, err, out)
	}
	return nil
}

// Up starts the node in the background, with additional flags for this start, and returns when it is healthy.
func (n *Node) Up(ctx context.Context, more ...string) error {
	flags := slices.Concat(n.Flags, more)
	if !slices.Contains(flags, "--config") {
		config := filepath.Join(n.Layout.StateDir(), "begin.yaml")
		const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: %d\n"
		if err := os.WriteFile(config, []byte(fmt.Sprintf(header, n.api)+AnyMachine), 0o600); err != nil {
			return fmt.Errorf("write a configuration: %w", err)
		}
		flags = append(flags, "--config", config)
	}
	_, err := n.Command(ctx, append([]string{"up", "--detach", "--read-only-port", n.port, "--healthz-port", n.healthz}, flags...)...)
	return err
}

// StopServices stops the four processes. The pods keep running.
func (n *Node) StopServices(ctx context.Context) error {
	_, err := n.Command(ctx, "down", "--keep-pods")
	return err
}

// Remove stops everything and removes the state directory. If the stop fails, the directory is kept.
func (n *Node) Remove(ctx context.Context) error {
	if _, err := n.Command(ctx, "down"); err != nil {
		return fmt.Errorf("%w\nthe state directory %s is kept", err, n.Layout.StateDir())
	}
	if err := os.RemoveAll(n.Layout.StateDir()); err != nil {
		return fmt.Errorf("remove the state directory: %w", err)
	}
	return nil
}

// Pods returns the pods of the read-only API. Like the kubelet's, it lists the pods of the sources.
func (n *Node) Pods(ctx context.Context) ([]v1.Pod, error) {
	url := "http://127.0.0.1:" + n.port + "/pods"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	var list v1.PodList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return list.Items, nil
}

// Names returns all pods that the command line lists, including those that are still being stopped: one pod/NAME a
// line.
func (n *Node) Names(ctx context.Context) (string, error) {
	return n.Command(ctx, "get", "pods", "-o", "name")
}

// PID returns the process id of a process of the node by its name.
func (n *Node) PID(name string) (int, error) {
	data, err := os.ReadFile(n.Layout.PIDFile(name))
	if err != nil {
		return 0, err
	}
	id, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("read the pid file of %s: %w", name, err)
	}
	return id, nil
}

// Place writes a manifest beside its place and renames it there, as editors do.
func (n *Node) Place(file, manifest string) error {
	if err := n.Prepare(file, manifest); err != nil {
		return err
	}
	return n.Rename(file)
}

// Prepare writes a manifest beside its place, under a name that configmux ignores. The manifest is readable for a
// configmux that is not root.
func (n *Node) Prepare(file, manifest string) error {
	if err := os.WriteFile(n.manifest("."+file), []byte(manifest), 0o644); err != nil {
		return fmt.Errorf("write a manifest: %w", err)
	}
	return nil
}

// Rename renames a prepared manifest to its place.
func (n *Node) Rename(file string) error {
	if err := os.Rename(n.manifest("."+file), n.manifest(file)); err != nil {
		return fmt.Errorf("put a manifest in place: %w", err)
	}
	return nil
}

// TakeAway removes a manifest; a missing one is no error.
func (n *Node) TakeAway(file string) error {
	if err := os.Remove(n.manifest(file)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a manifest: %w", err)
	}
	return nil
}

func (n *Node) manifest(file string) string { return filepath.Join(n.Layout.Manifests(), file) }

// Ready reports whether a pod's condition Ready is true. A nil pod is not ready.
func Ready(pod *v1.Pod) bool {
	if pod == nil {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}
