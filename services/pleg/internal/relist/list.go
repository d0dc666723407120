package relist

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// items holds the entries of one pod in a full list.
type items struct {
	began      int64
	at         *timestamppb.Timestamp
	sandboxes  []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
}

// listAll lists all sandboxes and containers, grouped by pod. It ignores those without a pod UID, which belong to other
// programs.
func (r *Relister) listAll(ctx context.Context) (map[string]*items, error) {
	began, at := int64(r.cfg.BootTime()), timestamppb.New(r.cfg.Clock.Now())
	ctx, cancel := context.WithTimeout(ctx, r.callTimeout())
	defer cancel()
	sandboxes, err := r.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing all sandboxes: %w", err)
	}
	containers, err := r.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("listing all containers: %w", err)
	}
	all := map[string]*items{}
	itemsOf := func(labels map[string]string) *items {
		uid := labels[podlabels.PodUID]
		if uid == "" {
			return &items{}
		}
		if all[uid] == nil {
			all[uid] = &items{began: began, at: at}
		}
		return all[uid]
	}
	for _, s := range sandboxes {
		pod := itemsOf(s.GetLabels())
		pod.sandboxes = append(pod.sandboxes, s)
	}
	for _, c := range containers {
		pod := itemsOf(c.GetLabels())
		pod.containers = append(pod.containers, c)
	}
	return all, nil
}

func (i *items) listing() record.Listing {
	l := record.Listing{
		Sandboxes:  make(map[string]lifecyclev1.SandboxState, len(i.sandboxes)),
		Containers: make(map[string]lifecyclev1.ContainerState, len(i.containers)),
	}
	for _, s := range i.sandboxes {
		l.Sandboxes[s.GetId()] = inspection.SandboxState(s.GetState())
	}
	for _, c := range i.containers {
		l.Containers[c.GetId()] = inspection.ContainerState(c.GetState())
	}
	return l
}

// status returns the status from the list, for a pod that has not been inspected.
func (i *items) status(uid string) *lifecyclev1.PodStatus {
	return inspection.Listed(
		&lifecyclev1.PodStatus{Uid: uid, ObservedBoottimeNs: i.began, ObservedAt: i.at},
		slices.Clone(i.sandboxes),
		slices.Clone(i.containers),
	)
}
