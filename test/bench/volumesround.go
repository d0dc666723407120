package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/figures"
	"github.com/quartet-node/quartet/test/livenode"
)

const (
	// createAtOnce is how many requests of the benchmark for pods run at once.
	createAtOnce = 8
	// pollStaged is the interval at which the mount table is read for staged volumes.
	pollStaged = 20 * time.Millisecond
)

// used is what a node has used so far.
type used struct {
	at  time.Time
	cpu float64
}

func (a *agent) used() (used, error) {
	cpu, err := a.cpu()
	return used{time.Now(), cpu}, err
}

// round starts pods with a volume each on a node, waits until all are Ready, deletes them, and waits until they are
// gone and nothing is staged.
func (r *volumeRig) round(ctx context.Context, a *agent, attach bool, pods int) (result VolumeRound, err error) {
	before, err := a.used()
	if err != nil {
		return result, err
	}
	seconds, err := r.startPods(ctx, a.name, attach, pods)
	if err != nil {
		return result, err
	}
	ready, err := a.used()
	if err != nil {
		return result, err
	}
	// What the node does after the last pod is Ready, such as statuses that are still to be sent, belongs to the start.
	if err := rest(ctx, settleTime); err != nil {
		return result, err
	}
	settled, err := a.used()
	if err != nil {
		return result, err
	}
	if err := r.stopPods(ctx, pods); err != nil {
		return result, err
	}
	gone, err := a.used()
	if err != nil {
		return result, err
	}
	result = VolumeRound{
		Median: figures.Median(seconds), Slowest: figures.Slowest(seconds), StartCPU: ready.cpu - before.cpu,
		Gone: gone.at.Sub(settled.at).Seconds(), StopCPU: gone.cpu - settled.cpu,
	}
	if result.Starts, err = r.calls(a.name, before.at, settled.at); err != nil {
		return result, err
	}
	if result.Stops, err = r.calls(a.name, settled.at, gone.at); err != nil {
		return result, err
	}
	return result, r.untilDetached(ctx)
}

// startPods creates pods that are bound to a node, and returns the seconds from the creation of each until the API
// server has it Ready.
func (r *volumeRig) startPods(ctx context.Context, node string, attach bool, pods int) ([]float64, error) {
	client := r.admin.CoreV1().Pods(benchNamespace)
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	changes, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	defer changes.Stop()
	created := make([]time.Time, pods)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(createAtOnce)
	readyAt := map[string]time.Time{}
	follow := make(chan error, 1)
	go func() { follow <- followReady(ctx, changes, readyAt, pods) }()
	for i := range pods {
		group.Go(func() error {
			created[i] = time.Now()
			_, err := client.Create(groupCtx, volumePod(node, attach, i), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		cancel()
		return nil, errors.Join(err, <-follow)
	}
	if err := <-follow; err != nil {
		return nil, err
	}
	seconds := make([]float64, pods)
	for i := range pods {
		seconds[i] = readyAt[podName(i)].Sub(created[i]).Seconds()
	}
	return seconds, nil
}

// followReady notes when each pod is Ready, until all are.
func followReady(ctx context.Context, changes apiwatch.Interface, at map[string]time.Time, pods int) error {
	for len(at) < pods {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods are Ready: %w", len(at), pods, ctx.Err())
		case change, ok := <-changes.ResultChan():
			if !ok {
				return fmt.Errorf("%d of %d pods are Ready: the watch has ended", len(at), pods)
			}
			pod, ok := change.Object.(*v1.Pod)
			if ok && at[pod.Name].IsZero() && livenode.Ready(pod) {
				at[pod.Name] = time.Now()
			}
		}
	}
	return nil
}

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }

// volumePod returns a pod on a node with one volume.
func volumePod(node string, attach bool, i int) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName(i), Namespace: benchNamespace},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			EnableServiceLinks: ptr.To(false), Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers: []v1.Container{{
				Name: "main", Image: livenode.Image, Args: benchArgs(), ImagePullPolicy: v1.PullIfNotPresent,
				VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(attach, i)},
			}}},
		},
	}
}

// stopPods deletes the pods, and waits until the API server has none and nothing is staged.
func (r *volumeRig) stopPods(ctx context.Context, pods int) error {
	client := r.admin.CoreV1().Pods(benchNamespace)
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(createAtOnce)
	for i := range pods {
		group.Go(func() error { return client.Delete(groupCtx, podName(i), metav1.DeleteOptions{}) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := poll(ctx, pollStaged, func(context.Context) (bool, error) {
		n, err := staged()
		if n > 0 {
			err = fmt.Errorf("%d volumes are staged", n)
		}
		return err == nil && n == 0, err
	}); err != nil {
		return err
	}
	return poll(ctx, pollStaged, func(ctx context.Context) (bool, error) {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(list.Items))
		}
		return err == nil, err
	})
}

// staged returns the number of mounts of CSI volumes, staged and published.
func staged() (int, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, kubeletDir) || !strings.Contains(m.Mountpoint, "io~csi") &&
			!strings.HasSuffix(m.Mountpoint, "/globalmount"), false
	})
	return len(mounts), err
}

// untilDetached waits until no volume is attached any more.
func (r *volumeRig) untilDetached(ctx context.Context) error {
	return poll(ctx, pollStop, func(ctx context.Context) (bool, error) {
		list, err := r.admin.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d volumes are attached", len(list.Items))
		}
		return err == nil, err
	})
}

// attachVolumes says of every volume that the controller wants to be attached that it is: the part of a driver's
// attacher.
func (r *volumeRig) attachVolumes(ctx context.Context) {
	client := r.admin.StorageV1().VolumeAttachments()
	for ctx.Err() == nil {
		changes, err := client.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			if rest(ctx, pollStop) != nil {
				return
			}
			continue
		}
		for change := range changes.ResultChan() {
			attachment, ok := change.Object.(*storagev1.VolumeAttachment)
			if !ok || change.Type != apiwatch.Added || attachment.Status.Attached {
				continue
			}
			_, _ = client.Patch(ctx, attachment.Name, types.MergePatchType, []byte(`{"status":{"attached":true}}`),
				metav1.PatchOptions{}, "status") // a pod that waits for it names what is missing
		}
	}
}
