package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
)

const (
	benchImage = "quartet.local/hello:1"
	// roundTimeout is far above what any round may take.
	roundTimeout = 3 * time.Minute
	// pollFast and pollSlow are how often /pods is asked for one pod and for many: a large document costs too much
	// to be asked for at the rate that shows the time of one pod.
	pollFast = 5 * time.Millisecond
	pollSlow = 50 * time.Millisecond
)

func benchArgs() []string { return []string{"sleep"} }

// node is a Quartet node in a state directory of its own, driven by its command line as a user would.
type node struct {
	quartet string
	layout  layout.Layout
	port    string
	client  http.Client
	up      bool
	round   int
}

func newNode(bin string) (*node, error) {
	dir, err := os.MkdirTemp("", "quartet-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	l, err := layout.New(dir)
	if err != nil {
		return nil, err
	}
	n := &node{quartet: filepath.Join(bin, "quartet"), layout: l}
	if n.port, err = freePort(); err != nil {
		return nil, err
	}
	return n, n.startServices(context.Background())
}

// freePort finds a port that nothing listens on, so that the node stands beside any other on this machine.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, errors.Join(err, listener.Close())
}

func (n *node) command(ctx context.Context, args ...string) error {
	args = append(args, "--state-dir", n.layout.StateDir())
	out, err := exec.CommandContext(ctx, n.quartet, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("quartet %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (n *node) startServices(ctx context.Context) error {
	if n.up {
		return nil
	}
	if err := n.command(ctx, "up", "--detach", "--read-only-port", n.port); err != nil {
		return err
	}
	n.up = true
	return nil
}

func (n *node) stopServices(ctx context.Context) error {
	if !n.up {
		return nil
	}
	n.up = false
	return n.command(ctx, "down", "--keep-pods")
}

func (n *node) remove(ctx context.Context) error {
	if err := n.command(ctx, "down"); err != nil {
		return fmt.Errorf("%w\nthe state directory %s is kept", err, n.layout.StateDir())
	}
	if err := os.RemoveAll(n.layout.StateDir()); err != nil {
		return fmt.Errorf("remove the state directory: %w", err)
	}
	return nil
}

// quartetRound puts manifests in place and returns the seconds until each pod was seen Ready, then takes them away
// again and waits until nothing of them is left.
func (n *node) quartetRound(ctx context.Context, pods int) ([]float64, error) {
	seconds, err := n.startPods(ctx, pods)
	if err != nil {
		return nil, err
	}
	return seconds, n.stopPods(ctx, pods)
}

func (n *node) startPods(ctx context.Context, pods int) ([]float64, error) {
	if err := n.startServices(ctx); err != nil {
		return nil, err
	}
	n.round++
	for i := range pods {
		manifest := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"bench-%d-%d","namespace":"bench"},
"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"main","image":%q,"args":["sleep"]}]}}`, n.round, i, benchImage)
		if err := os.WriteFile(n.hidden(i), []byte(manifest), 0o600); err != nil {
			return nil, fmt.Errorf("write a manifest: %w", err)
		}
	}
	begin := time.Now()
	for i := range pods {
		if err := os.Rename(n.hidden(i), n.manifest(i)); err != nil {
			return nil, fmt.Errorf("put a manifest in place: %w", err)
		}
	}
	return n.untilReady(ctx, begin, pods)
}

func (n *node) untilReady(ctx context.Context, begin time.Time, pods int) ([]float64, error) {
	ready := map[string]float64{}
	err := n.poll(ctx, pods, func(list *v1.PodList) bool {
		now := time.Since(begin).Seconds()
		for i := range list.Items {
			pod := &list.Items[i]
			if _, seen := ready[pod.Name]; !seen && isReady(pod) {
				ready[pod.Name] = now
			}
		}
		return len(ready) == pods
	})
	if err != nil {
		return nil, fmt.Errorf("%d of %d pods are Ready: %w", len(ready), pods, err)
	}
	seconds := make([]float64, 0, pods)
	for _, s := range ready {
		seconds = append(seconds, s)
	}
	return seconds, nil
}

func (n *node) stopPods(ctx context.Context, pods int) error {
	for i := range pods {
		if err := os.Remove(n.manifest(i)); err != nil {
			return fmt.Errorf("take a manifest away: %w", err)
		}
	}
	// /pods lists what the sources name, as the kubelet's does; the command line shows what is still being stopped.
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	ticker := time.NewTicker(pollSlow)
	defer ticker.Stop()
	for {
		out, err := exec.CommandContext(ctx, n.quartet, "get", "pods", "-o", "name", "--state-dir", n.layout.StateDir()).Output()
		if err == nil && !strings.Contains(string(out), "pod/") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pods are still there: %s: %w", out, errors.Join(ctx.Err(), err))
		case <-ticker.C:
		}
	}
}

// poll asks for /pods until done says so.
func (n *node) poll(ctx context.Context, pods int, done func(*v1.PodList) bool) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	ticker := time.NewTicker(min(time.Duration(pods)*pollFast, pollSlow))
	defer ticker.Stop()
	var last error
	for {
		list, err := n.pods(ctx)
		if err == nil && done(list) {
			return nil
		}
		last = err
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		case <-ticker.C:
		}
	}
}

func (n *node) pods(ctx context.Context) (*v1.PodList, error) {
	url := "http://127.0.0.1:" + n.port + "/pods"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	list := &v1.PodList{}
	return list, json.NewDecoder(resp.Body).Decode(list)
}

func isReady(pod *v1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func (n *node) manifest(i int) string {
	return filepath.Join(n.layout.Manifests(), fmt.Sprintf("bench-%d.json", i))
}

func (n *node) hidden(i int) string {
	return filepath.Join(n.layout.Manifests(), fmt.Sprintf(".bench-%d.json", i))
}
