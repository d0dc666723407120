package probecalls_test

import (
	"net"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// TestOnContainerd probes a container of a real runtime by commands and by its address.
func TestOnContainerd(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a containerd")
	}
	containerd := harness.StartContainerd(t)
	runtime := harness.ConnectCRI(t.Context(), t, containerd.Endpoint).Runtime
	e := &execRig{rig: newRig(t)}
	e.config.Runtime = func() (internalapi.RuntimeService, error) { return runtime, nil }
	e.Caller = probecalls.New(e.config)
	e.id = startContainer(t, runtime, harness.HelloImage, []string{"serve"})

	for _, c := range []struct {
		name    string
		command []string
		want    want
	}{
		{"well", []string{"/hello", "init", "-after", "0s", "-message", "fine"}, want{outcome: probecalls.Success, output: "fine\n"}},
		{"ill", []string{"/hello", "crash", "-after", "0s", "-code", "3", "-message", "$(TROUBLE)"}, want{outcome: probecalls.Failure, output: "disk full\n"}},
		{"slow", []string{"/hello", "sleep"}, want{outcome: probecalls.Failure, output: `command timed out: "/hello sleep" timed out after 1s`}},
		{"no such program", []string{"/bin/sh"}, want{outcome: probecalls.Unknown, output: "no such file or directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			to := e.command(t, c.command...)
			to.Container.Env = []v1.EnvVar{{Name: "TROUBLE", Value: "disk full"}}
			if c.name == "slow" {
				to.Probe.TimeoutSeconds = 1
			}
			c.want.check(t, e.Probe(t.Context(), to))
		})
	}
	for _, event := range e.events() {
		if strings.Contains(event, e.id) {
			t.Errorf("told %q, with the container's ID, want text without %q", event, e.id)
		}
	}

	address := &net.TCPAddr{IP: podIP(t, runtime), Port: 8080}
	eventually.In(t.Context(), t, "the container answers", func() bool {
		return e.Probe(t.Context(),
			target(t, address, v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: named()}})).Outcome == probecalls.Success
	})
	get := target(t, address, v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: named()}})
	if got := e.Probe(t.Context(), get); got.Outcome != probecalls.Success || got.Output == "" {
		t.Errorf("Probe() = %+v, want Outcome %v and some Output", got, probecalls.Success)
	}
}

// podIP returns the address of the only pod.
func podIP(t *testing.T, runtime internalapi.RuntimeService) net.IP {
	t.Helper()
	pods, err := runtime.ListPodSandbox(t.Context(), &runtimeapi.PodSandboxFilter{})
	if err != nil || len(pods) != 1 {
		t.Fatalf("%d pods, error %v, want 1", len(pods), err)
	}
	status, err := runtime.PodSandboxStatus(t.Context(), pods[0].GetId(), false)
	if err != nil {
		t.Fatal(err)
	}
	return net.ParseIP(status.GetStatus().GetNetwork().GetIp())
}
