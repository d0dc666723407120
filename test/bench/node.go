package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quartet-node/quartet/test/livenode"
)

const (
	// roundTimeout is far above the duration of any round.
	roundTimeout = 3 * time.Minute
	// pollPerPod is the interval between two requests for /pods, for each pod in it. The size of the answer and the load
	// on the measured machine grow with the pods, and so does the measured time.
	pollPerPod = 2500 * time.Microsecond
	// pollStop is the interval at which the command line is asked for remaining pods, which is not measured.
	pollStop = 100 * time.Millisecond
)

func benchArgs() []string { return []string{"sleep"} }

// node is a live node whose processes can be stopped, so that bare CRI calls have the runtime for themselves.
type node struct {
	*livenode.Node
	up    bool
	round int
}

func newNode(ctx context.Context, bin string) (*node, error) {
	live, err := livenode.New(bin, "bench")
	if err != nil {
		return nil, err
	}
	n := &node{Node: live}
	return n, n.startServices(ctx)
}

func (n *node) startServices(ctx context.Context) error {
	if n.up {
		return nil
	}
	n.up = true
	if err := n.Up(ctx); err != nil {
		return err
	}
	// A node that has just started has caches to fill, and the runtime has not. One pod is started before the measurement.
	_, err := n.quartetRound(ctx, 1)
	return err
}

func (n *node) stopServices(ctx context.Context) error {
	if !n.up {
		return nil
	}
	n.up = false
	return n.StopServices(ctx)
}

// quartetRound puts manifests in place and returns the seconds until each pod was Ready. Then it removes the manifests
// and waits until nothing of the pods is left.
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
"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"main","image":%q,"args":["sleep"]}]}}`, n.round, i, livenode.Image)
		if err := n.Prepare(file(i), manifest); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	for i := range pods {
		if err := n.Rename(file(i)); err != nil {
			return nil, err
		}
	}
	return n.untilReady(ctx, begin, pods)
}

func (n *node) untilReady(ctx context.Context, begin time.Time, pods int) ([]float64, error) {
	ready := map[string]float64{}
	err := poll(ctx, time.Duration(pods)*pollPerPod, func(ctx context.Context) (bool, error) {
		list, err := n.Pods(ctx)
		now := time.Since(begin).Seconds()
		for i := range list {
			pod := &list[i]
			if _, seen := ready[pod.Name]; !seen && livenode.Ready(pod) {
				ready[pod.Name] = now
			}
		}
		return len(ready) == pods, err
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
		if err := n.TakeAway(file(i)); err != nil {
			return err
		}
	}
	return n.untilGone(ctx)
}

// untilGone waits until nothing is left of any pod.
func (n *node) untilGone(ctx context.Context) error {
	return poll(ctx, pollStop, func(ctx context.Context) (bool, error) {
		names, err := n.Names(ctx)
		return err == nil && !strings.Contains(names, "pod/"), err
	})
}

// poll calls done until it returns true. Its error includes that of the last call.
func poll(ctx context.Context, interval time.Duration, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

func file(i int) string { return fmt.Sprintf("bench-%d.json", i) }
