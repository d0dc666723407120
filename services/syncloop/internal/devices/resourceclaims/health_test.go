package resourceclaims_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"
)

// TestTheHealthOfDevices is in the status, by both versions of the API, until it is too old or the driver has gone.
func TestTheHealthOfDevices(t *testing.T) {
	for _, service := range []string{drahealthv1.DRAResourceHealthService, drahealthv1alpha1.DRAResourceHealthService} {
		t.Run(service, func(t *testing.T) {
			r := newRig(t)
			p := &plugin{reports: make(chan *drahealthv1.NodeWatchResourcesResponse)}
			r.serve(gpus, "a.sock", p, drav1.DRAPluginService, service)
			r.api.put("one", []string{gpus}, "a")
			pod := named("a", "one")
			pod.Spec.Containers[0].Resources.Claims[0].Request = "one"
			r.prepare(pod)
			is := func() string {
				status := r.Status(pod, "main")
				if len(status) != 1 || len(status[0].Resources) != 1 || status[0].Resources[0].ResourceID != "example.com/gpu=one" {
					t.Fatalf("the status is %v", status)
				}
				one := status[0].Resources[0]
				return string(status[0].Name) + " " + string(one.Health) + " " + ptr.Deref(one.Message, "")
			}
			want(t, "at first", is(), "claim:my-one/one Unknown ")
			report := func(h drahealthv1.HealthStatus) *drahealthv1.NodeWatchResourcesResponse {
				return &drahealthv1.NodeWatchResourcesResponse{Devices: []*drahealthv1.DeviceHealth{{
					Device: &drahealthv1.DeviceIdentifier{PoolName: "node", DeviceName: "dev-one"}, Health: h,
				}}}
			}
			p.reports <- report(drahealthv1.HealthStatus_HEALTHY)
			want(t, "the pod", string(<-r.changed), "a")
			want(t, "then", is(), "claim:my-one/one Healthy ")
			p.reports <- report(drahealthv1.HealthStatus_HEALTHY)
			p.reports <- report(drahealthv1.HealthStatus_UNHEALTHY)
			<-r.changed
			want(t, "then", is(), "claim:my-one/one Unhealthy ")
			r.clock.Step(31 * time.Second)
			want(t, "after the timeout", is(), "claim:my-one/one Unknown ")
			p.reports <- report(drahealthv1.HealthStatus_UNHEALTHY)
			p.reports <- nil
			<-r.changed
			want(t, "after the end of the reports", is(), "claim:my-one/one Unknown ")
			if len(r.changed) > 0 {
				t.Errorf("%d needless syncs", len(r.changed))
			}
		})
	}
}

// TestTheHealthOfDevicesDuringAnUpdateOfTheirDriver is that of the new plugin, also after the old one has ended.
func TestTheHealthOfDevicesDuringAnUpdateOfTheirDriver(t *testing.T) {
	r := newRig(t)
	plugins := map[string]*plugin{}
	for _, name := range []string{"old", "new"} {
		plugins[name] = &plugin{reports: make(chan *drahealthv1.NodeWatchResourcesResponse)}
		r.serve(gpus, name+".sock", plugins[name], drav1.DRAPluginService, drahealthv1.DRAResourceHealthService)
	}
	r.api.put("one", []string{gpus}, "a")
	pod := named("a", "one")
	r.prepare(pod)
	for _, step := range []struct {
		plugin string
		// reported is the health that the plugin reports; Unknown is the end of its report.
		reported, want v1.ResourceHealthStatus
	}{
		{"old", v1.ResourceHealthStatusHealthy, v1.ResourceHealthStatusHealthy},
		{"new", v1.ResourceHealthStatusUnhealthy, v1.ResourceHealthStatusUnhealthy},
		{"old", v1.ResourceHealthStatusUnknown, v1.ResourceHealthStatusUnhealthy},
		{"new", v1.ResourceHealthStatusUnknown, v1.ResourceHealthStatusUnknown},
	} {
		var report *drahealthv1.NodeWatchResourcesResponse
		if step.reported != v1.ResourceHealthStatusUnknown {
			health := drahealthv1.HealthStatus_HEALTHY
			if step.reported == v1.ResourceHealthStatusUnhealthy {
				health = drahealthv1.HealthStatus_UNHEALTHY
			}
			report = &drahealthv1.NodeWatchResourcesResponse{Devices: []*drahealthv1.DeviceHealth{
				{Device: &drahealthv1.DeviceIdentifier{PoolName: "node", DeviceName: "dev-one"}, Health: health},
			}}
		}
		plugins[step.plugin].reports <- report
		<-r.changed
		status := r.Status(pod, "main")
		if len(status) != 1 || len(status[0].Resources) != 1 {
			t.Fatalf("the status is %v", status)
		}
		if got := status[0].Resources[0].Health; got != step.want {
			t.Fatalf("after %s from the %s plugin the health is %s, want %s", step.reported, step.plugin, got, step.want)
		}
	}
}
