package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/quartet-node/quartet/test/livenode"
)

// standaloneConfig and livenode.AnyMachine are the configuration of both nodes without an API server: the defaults,
// except what this environment requires, and the read-only port, by which both are read.
const standaloneConfig = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %s
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
address: 127.0.0.1
readOnlyPort: 10255
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
staticPodPath: %s
maxPods: %d
`

const podsURL = "http://127.0.0.1:10255/pods"

// pollPerPod is the interval between two requests for /pods, for each pod in it. The size of the answer and the load on
// the measured machine grow with the pods, and so does the measured time.
const pollPerPod = 2500 * time.Microsecond

func benchArgs() []string { return []string{"sleep"} }

// podRig is what bare calls, the kubelet and Quartet share when they run pods without an API server.
type podRig struct {
	rig

	cri internalapi.RuntimeService
	// batch counts the sets of pods, so that each has names of its own.
	batch int
	// bareAtOnce limits how many pods bare calls start at the same time; 0 is no limit.
	bareAtOnce int
}

func newPodRig(ctx context.Context, bin, dir string) (r *podRig, err error) {
	r = &podRig{rig: rig{bin: bin, dir: dir}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
		}
	}()
	if err := os.MkdirAll(r.manifests(), 0o755); err != nil {
		return r, err
	}
	if err := r.startRuntime(ctx); err != nil {
		return r, err
	}
	r.cri, err = connect(ctx, r.layout.RuntimeEndpoint())
	return r, err
}

func (r *podRig) close(ctx context.Context) error {
	var err error
	if r.cri != nil {
		err = r.cri.Close(ctx)
	}
	return errors.Join(err, r.stopRuntime())
}

func (r *podRig) manifests() string { return filepath.Join(r.dir, "manifests") }

// start starts a program as a standalone kubelet.
func (r *podRig) start(name, program string, pods int) (*agent, error) {
	const defaultMaxPods, spare = 110, 10
	config := livenode.AnyMachine + fmt.Sprintf(standaloneConfig,
		r.layout.RuntimeEndpoint(), r.manifests(), max(defaultMaxPods, pods+spare))
	return r.startAgent(name, program, config)
}

// podSet is a number of pods.
type podSet struct {
	// names are those of the pods, which end with that of the node.
	names []string
	files []string
}

// place puts the manifests of a number of pods of a node in place, and returns the seconds until each is Ready in
// /pods.
func (r *podRig) place(ctx context.Context, a *agent, pods int) (podSet, []float64, error) {
	set, err := r.write(a, pods)
	if err != nil {
		return set, nil, err
	}
	begin := time.Now()
	if err := set.rename(); err != nil {
		return set, nil, err
	}
	seconds, err := untilReady(ctx, begin, set)
	return set, seconds, err
}

// write writes the manifests of a number of pods of a node, which are not in place yet.
func (r *podRig) write(a *agent, pods int) (podSet, error) {
	r.batch++
	var set podSet
	for i := range pods {
		name := fmt.Sprintf("bench-%d-%d", r.batch, i)
		manifest := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":%q},
"spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"main","image":%q,"args":["sleep"]}]}}`,
			name, benchNamespace, livenode.Image)
		file := filepath.Join(r.manifests(), name+".json")
		if err := os.WriteFile(hidden(file), []byte(manifest), 0o600); err != nil {
			return set, err
		}
		set.names, set.files = append(set.names, name+"-"+a.name), append(set.files, file)
	}
	return set, nil
}

// rename puts the manifests in place.
func (s podSet) rename() error {
	for _, file := range s.files {
		if err := os.Rename(hidden(file), file); err != nil {
			return err
		}
	}
	return nil
}

// hidden returns the name of a manifest that is not in place yet, which both nodes ignore.
func hidden(file string) string { return filepath.Join(filepath.Dir(file), "."+filepath.Base(file)) }

// takeAway removes the manifests of pods, and returns the seconds until the runtime runs nothing of them.
func (r *podRig) takeAway(ctx context.Context, sets ...podSet) (float64, error) {
	begin, pods := time.Now(), 0
	for _, set := range sets {
		pods += len(set.files)
		for _, file := range set.files {
			if err := os.Remove(file); err != nil {
				return 0, err
			}
		}
	}
	return untilNothingRuns(ctx, r.cri, begin, pods)
}

// untilReady returns the seconds from begin until each pod of a set is Ready in /pods.
func untilReady(ctx context.Context, begin time.Time, set podSet) ([]float64, error) {
	ready, pods := map[string]float64{}, len(set.names)
	err := poll(ctx, time.Duration(pods)*pollPerPod, func(ctx context.Context) (bool, error) {
		list, arrived, err := listPods(ctx)
		for i := range list {
			pod := &list[i]
			if _, seen := ready[pod.Metadata.Name]; !seen && pod.ready() && slices.Contains(set.names, pod.Metadata.Name) {
				ready[pod.Metadata.Name] = arrived.Sub(begin).Seconds()
			}
		}
		return len(ready) >= pods, err
	})
	if err != nil {
		return nil, fmt.Errorf("%d of %d pods are Ready: %w", len(ready), pods, err)
	}
	seconds := make([]float64, 0, len(ready))
	for _, s := range ready {
		seconds = append(seconds, s)
	}
	return seconds, nil
}

// listedPod is what the benchmark reads of a pod in /pods. A whole v1.Pod takes twice as long to decode, on the
// processors that are measured.
type listedPod struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type   v1.PodConditionType `json:"type"`
			Status v1.ConditionStatus  `json:"status"`
		} `json:"conditions"`
		ContainerStatuses []struct {
			Ready       bool   `json:"ready"`
			ContainerID string `json:"containerID"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

func (p *listedPod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// container returns the ID of the pod's only container; "" if that is not ready.
func (p *listedPod) container() string {
	for _, c := range p.Status.ContainerStatuses {
		if c.Ready {
			const scheme = "containerd://"
			return c.ContainerID[len(scheme):]
		}
	}
	return ""
}

// listPods returns the pods of the running node, and when the answer had arrived.
func listPods(ctx context.Context) (pods []listedPod, arrived time.Time, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, podsURL, http.NoBody)
	if err != nil {
		return nil, arrived, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, arrived, err
	}
	defer resp.Body.Close() //nolint:errcheck // the body was only read
	if resp.StatusCode != http.StatusOK {
		return nil, arrived, fmt.Errorf("%s: %s", podsURL, resp.Status)
	}
	body, err := io.ReadAll(resp.Body)
	arrived = time.Now()
	if err != nil {
		return nil, arrived, fmt.Errorf("%s: %w", podsURL, err)
	}
	var list struct {
		Items []listedPod `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, arrived, fmt.Errorf("%s: %w", podsURL, err)
	}
	return list.Items, arrived, nil
}

// bareStart creates pods by calls of the runtime alone, as many at once as bareAtOnce permits. It returns
// their sandboxes, and the seconds until the container of each was started.
func (r *podRig) bareStart(ctx context.Context, pods int) (sandboxes []string, seconds []float64, err error) {
	sandboxes, seconds = make([]string, pods), make([]float64, pods)
	begin := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	if r.bareAtOnce > 0 {
		group.SetLimit(r.bareAtOnce)
	}
	for i := range pods {
		group.Go(func() error {
			var err error
			sandboxes[i], err = r.barePod(groupCtx, r.cri, i)
			seconds[i] = time.Since(begin).Seconds()
			return err
		})
	}
	return sandboxes, seconds, group.Wait()
}
