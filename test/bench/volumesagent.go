package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/livenode"
)

// agentConfig and livenode.AnyMachine are the configuration of both nodes: the defaults, except what this environment
// requires.
const agentConfig = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %s
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
enableServer: false
healthzPort: 0
maxPods: %d
`

// startNode starts a program as the kubelet of a node of the cluster.
func (r *volumeRig) startNode(name, program string) (*agent, error) {
	const defaultMaxPods, spare = 110, 10
	maxPods := max(defaultMaxPods, r.opts.Pods+spare)
	kubeconfig := filepath.Join(r.dir, name+".kubeconfig")
	if err := r.cluster.SaveKubeconfig(kubeconfig, cluster.NodeUser(name), cluster.Nodes); err != nil {
		return nil, err
	}
	config := livenode.AnyMachine + fmt.Sprintf(agentConfig, r.layout.RuntimeEndpoint(), maxPods)
	return r.startAgent(name, program, config, "--kubeconfig="+kubeconfig)
}

// untilNodeReady waits until the API server has the Node Ready by a node's process that began at a time. The condition
// of an earlier process counts only once it was sent again. An unchanged one is sent again after minutes, so the first
// one must not be missed: its time has whole seconds.
func (r *volumeRig) untilNodeReady(ctx context.Context, name string, begin metav1.Time) error {
	begin = begin.Rfc3339Copy()
	err := poll(ctx, pollStop, func(ctx context.Context) (bool, error) {
		node, err := r.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue && !c.LastHeartbeatTime.Before(&begin)
		}), nil
	})
	if err != nil {
		return fmt.Errorf("the Node is not Ready: %w", err)
	}
	return nil
}

// untilRegistered waits until the CSINode of a node has the drivers.
func (r *volumeRig) untilRegistered(ctx context.Context, name string) error {
	err := poll(ctx, pollStop, func(ctx context.Context) (bool, error) {
		node, err := r.admin.StorageV1().CSINodes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(node.Spec.Drivers) == len(r.drivers), err
	})
	if err != nil {
		return fmt.Errorf("not all drivers are registered: %w", err)
	}
	return nil
}
