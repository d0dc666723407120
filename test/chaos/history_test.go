package chaos

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// instance is one container of the runtime, as it was last seen, or from the runtime's log.
type instance struct {
	id, sandbox    string
	uid, pod, name string
	// count is the restart count of the container, cause is its start cause, and spec is the hash of its spec.
	count       int
	cause, spec string
	created     time.Time
	// started is true when it has run, since begun when that is known; ended is true when its end was seen.
	started, ended bool
	begun          time.Time
	// ends has its end from every source: a runtime that was killed may have lost what it has logged.
	ends []end
	// unseen is true for a container that is only in the runtime's log: its spec is not known.
	unseen bool
	// The times of the start request, the successful start, the end, and the removal request in the runtime's log; zero
	// when missing.
	requested, running, exited, removed time.Time
}

// end is the end of a container.
type end struct {
	code   int32
	reason string
}

func (e end) String() string { return fmt.Sprintf("%d (%s)", e.code, e.reason) }

func (i *instance) String() string {
	return fmt.Sprintf("%s of %s (%s, restart %d, pod %s)", i.name, i.pod, i.id, i.count, i.uid)
}

// history is the state of the runtime over the whole run, with the additional facts of its log.
type history struct {
	watching sync.WaitGroup

	looks     int
	instances map[string]*instance
	// twice has the containers of which two instances ran at the same time.
	twice map[string]bool
}

// watch inspects the runtime ten times a second until ctx ends; wait then waits for its end.
func (r runtime) watch(ctx context.Context) *history {
	h := &history{instances: map[string]*instance{}, twice: map[string]bool{}}
	h.watching.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			list, err := r.containers(ctx)
			if err != nil {
				continue // the runtime was killed
			}
			h.looks++
			for _, c := range list {
				h.see(ctx, r, c)
			}
			for _, twice := range runningTwice(list) {
				if !h.twice[twice] {
					h.twice[twice] = true
					fmt.Printf("%s twice: %s\n", time.Now().Format(time.StampMilli), twice)
				}
			}
		}
	})
	return h
}

func (h *history) wait() { h.watching.Wait() }

// see records a container. Its start and its end are each requested only once.
func (h *history) see(ctx context.Context, r runtime, c *runtimeapi.Container) {
	i := h.instances[c.GetId()]
	if i == nil {
		restart := podlabels.RestartOf(c.GetAnnotations(), c.GetMetadata().GetAttempt())
		i = &instance{
			id: c.GetId(), sandbox: c.GetPodSandboxId(), uid: c.GetLabels()[podlabels.PodUID],
			pod:  c.GetLabels()[podlabels.PodName],
			name: c.GetLabels()[podlabels.ContainerName], count: restart.Count, cause: restart.Cause,
			spec: c.GetAnnotations()[podlabels.ContainerSpecHash], created: time.Unix(0, c.GetCreatedAt()),
		}
		if c.GetCreatedAt() == 0 { // the runtime was killed before it recorded the time
			i.created = time.Now()
		}
		h.instances[i.id] = i
	}
	if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		i.started = true
	}
	exited := c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	if i.ended || !exited && (!i.started || !i.begun.IsZero()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: i.id})
	if err != nil {
		return // the container was removed, or the runtime killed
	}
	s := resp.GetStatus()
	if s.GetStartedAt() > 0 {
		i.started, i.begun = true, time.Unix(0, s.GetStartedAt())
	}
	if s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
		i.ended, i.ends = true, []end{{s.GetExitCode(), s.GetReason()}}
	}
}

// rows returns the instances of each container of each pod, in the order of their creation.
func (h *history) rows() [][]*instance {
	rows := map[string][]*instance{}
	for _, i := range h.instances {
		rows[i.uid+"/"+i.name] = append(rows[i.uid+"/"+i.name], i)
	}
	var out [][]*instance
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		out = append(out, slices.SortedFunc(slices.Values(rows[key]), func(a, b *instance) int {
			return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id))
		}))
	}
	return out
}
