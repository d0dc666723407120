package pleg

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestARuntimeThatIsKilledAndComesBackIsFollowed(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	r := startPLEG(t, fake.Endpoint())
	r.mode(evented)
	w := r.watch()
	fake.Stop()
	eventually.That(r.t, "its absence shows in the health", func() bool {
		health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{})
		return err == nil && !health.GetHealthy() && len(health.GetReasons()) > 0 && !health.GetRuntime().GetReady()
	})
	if got := r.status("uid-1", 0); len(got.GetContainers()) != 1 {
		t.Errorf("while the runtime is away the record says %v", got)
	}
	_, err := r.client.GetPodStatus(
		r.ctx(),
		&lifecyclev1.GetPodStatusRequest{Uid: "uid-1", NewerThanBoottimeNs: int64(boottime.Now())},
	)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a fresh status of a runtime that is away: got %v, want Unavailable", err)
	}
	fake.Exit(ids["app"], 3)
	if err := fake.Start(); err != nil {
		t.Fatal(err)
	}
	if e := w.until(died, ids["app"]); e.GetExitCode() != 3 {
		t.Errorf("a death while the runtime was away is told as %v", e)
	}
	r.mode(evented)
	eventually.That(r.t, "all is well again", func() bool {
		health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{})
		return err == nil && health.GetHealthy() && health.GetRuntime().GetName() == "fakecri"
	})
}

func TestWithoutARuntimeItServesAndSaysWhatItWaitsFor(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "uid-1"})
	fake.Stop()
	r := startPLEG(t, fake.Endpoint())
	health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{}, grpc.WaitForReady(true))
	if err != nil || health.GetHealthy() || !strings.Contains(strings.Join(health.GetReasons(), "\n"), fake.Endpoint()) {
		t.Errorf("got health %v and error %v", health, err)
	}
	for what, call := range map[string]func() error{
		"GetPodStatus": func() error {
			_, err := r.client.GetPodStatus(r.ctx(), &lifecyclev1.GetPodStatusRequest{Uid: "uid-1"})
			return err
		},
		"ListPodStatuses": func() error {
			_, err := r.client.ListPodStatuses(r.ctx(), &lifecyclev1.ListPodStatusesRequest{})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Unavailable {
			t.Errorf("%s before the first relist: got %v, want Unavailable", what, err)
		}
	}
	if err := fake.Start(); err != nil {
		t.Fatal(err)
	}
	// A watch that began before the first relist has a complete snapshot.
	if w := r.watch(); w.snapshot["uid-1"] == nil {
		t.Error("the snapshot lacks the pod")
	}
}

func TestARuntimeThatSaysThatItIsNotReadyIsReported(t *testing.T) {
	fake := fakecri.New(t)
	fake.SetConditions(false, false)
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	eventually.That(r.t, "it shows in the health", func() bool {
		health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{})
		return err == nil && !health.GetHealthy() && strings.Contains(fmt.Sprint(health.GetReasons()), "Scripted") &&
			!health.GetRuntime().GetNetworkReady() && len(health.GetRuntime().GetHandlers()) == 2
	})
	fake.SetConditions(true, false)
	eventually.That(r.t, "a runtime without a network is healthy, and says so", func() bool {
		health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{})
		return err == nil && health.GetHealthy() && health.GetRuntime().GetReady() && !health.GetRuntime().GetNetworkReady()
	})
}
