// Package podviewtest builds pods and their observed states from a line of words, so that tests read as tables.
package podviewtest

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
)

// Now is the reference time of the words.
var Now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// Pod builds a pod from words: "init:a sidecar:b c d live:e ephemeral:f", with a restart policy. The words live and
// livesidecar are for containers with a liveness probe.
func Pod(policy v1.RestartPolicy, containers string) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"},
		Spec:       v1.PodSpec{RestartPolicy: policy},
	}
	always := v1.ContainerRestartPolicyAlways
	for _, word := range strings.Fields(containers) {
		kind, name, ok := strings.Cut(word, ":")
		if !ok {
			kind, name = "", word
		}
		c := v1.Container{Name: name, Image: "image:1"}
		switch kind {
		case "live":
			c.LivenessProbe = &v1.Probe{}
			fallthrough
		case "":
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		case "ephemeral":
			common := v1.EphemeralContainerCommon(c)
			pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, v1.EphemeralContainer{
				EphemeralContainerCommon: common,
			})
		case "sidecar", "livesidecar":
			c.RestartPolicy = &always
			if kind == "livesidecar" {
				c.LivenessProbe = &v1.Probe{}
			}
			fallthrough
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		default:
			panic("unknown kind " + kind)
		}
	}
	return pod
}

// Status builds the observed state of a pod from words, oldest first: "s0:ready a@s0:exited=1 b@s0:running". A sandbox
// is ready, ready-host (on the host's network), ready-no-ip or notready. The word of a container may have the suffixes
// ",rc=N" (restart count and back-off step), ",step=N" (another back-off step), ",ended=D" (ended D ago), ",ran=D" (had
// run for D).
func Status(pod *v1.Pod, words string) *lifecyclev1.PodStatus {
	status := &lifecyclev1.PodStatus{Uid: string(pod.UID)}
	for i, word := range strings.Fields(words) {
		created := timestamppb.New(Now.Add(-time.Hour + time.Duration(i)*time.Second))
		subject, state, _ := strings.Cut(word, ":")
		state, options, _ := strings.Cut(state, ",")
		name, sandbox, isContainer := strings.Cut(subject, "@")
		if !isContainer {
			attempt, err := strconv.ParseUint(strings.TrimPrefix(subject, "s"), 10, 32)
			if err != nil {
				panic(err)
			}
			s := &lifecyclev1.Sandbox{
				Id: subject, Attempt: uint32(attempt), CreatedAt: created, HostNetwork: state == "ready-host",
			}
			s.State = lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY
			if strings.HasPrefix(state, "ready") {
				s.State = lifecyclev1.SandboxState_SANDBOX_STATE_READY
			}
			if state == "ready" {
				s.Ips = []string{"10.0.0.9"}
			}
			status.Sandboxes = append([]*lifecyclev1.Sandbox{s}, status.Sandboxes...)
			continue
		}
		c := newContainer(pod, name, state, options)
		c.SandboxId, c.CreatedAt = sandbox, created
		c.Id = fmt.Sprintf("%s-%d", name, i)
		status.Containers = append([]*lifecyclev1.Container{c}, status.Containers...)
	}
	return status
}

func newContainer(pod *v1.Pod, name, state, options string) *lifecyclev1.Container {
	c := &lifecyclev1.Container{Name: name}
	count, step, ended, ran := 0, -1, time.Hour, time.Second
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		var err error
		switch key {
		case "":
		case "rc":
			count, err = strconv.Atoi(value)
		case "step":
			step, err = strconv.Atoi(value)
		case "ended":
			ended, err = time.ParseDuration(value)
		case "ran":
			ran, err = time.ParseDuration(value)
		default:
			panic("unknown option " + option)
		}
		if err != nil {
			panic(err)
		}
	}
	state, code, _ := strings.Cut(state, "=")
	switch state {
	case "created":
		c.State = lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
	case "running":
		c.State = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
		c.StartedAt = timestamppb.New(Now.Add(-ran))
	case "unknown":
		c.State = lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN
	case "exited":
		c.State = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
		n, err := strconv.ParseInt(code, 10, 32)
		if err != nil {
			panic(err)
		}
		c.ExitCode = int32(n)
		c.FinishedAt = timestamppb.New(Now.Add(-ended))
		c.StartedAt = timestamppb.New(Now.Add(-ended - ran))
	default:
		panic("unknown state " + state)
	}
	spec := &v1.Container{Name: name, Image: "image:1"}
	if step < 0 {
		step = count
	}
	_, annotations, err := podlabels.Container(pod, spec, podlabels.Restart{Count: count, Step: step}, "")
	if err != nil {
		panic(err)
	}
	c.Annotations, c.Attempt = annotations, uint32(count)
	return c
}
