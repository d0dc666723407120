package resourceclaims

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
)

const (
	// defaultHealthTimeout is the kubelet's time after which the health of a device is unknown, unless it is reported
	// again.
	defaultHealthTimeout = 30 * time.Second
	// healthRetry is the kubelet's pause before a driver is asked for the health of devices again.
	healthRetry = 5 * time.Second
	// maxHealth is the kubelet's limit for the devices of a driver whose health is kept.
	maxHealth = 16384
	// maxTimeoutSeconds bounds a driver's timeout, so that it is no overflow.
	maxTimeoutSeconds = 1 << 32
)

// deviceKey is a device of a driver.
type deviceKey struct{ pool, name string }

// deviceHealth is the reported health of a device.
type deviceHealth struct {
	health  v1.ResourceHealthStatus
	message string
	// at is the time of the report, which counts for the timeout.
	at      time.Time
	timeout time.Duration
}

// watchHealth follows the health of devices that a plugin reports until ctx ends.
func (m *Manager) watchHealth(ctx context.Context, d *driver) {
	logged := false
	for ctx.Err() == nil {
		reported, err := m.streamHealth(ctx, d)
		m.dropHealth(d)
		if ctx.Err() != nil || status.Code(err) == codes.Unimplemented {
			return // a driver that learns it registers again
		}
		if reported || !logged {
			logged = true
			m.cfg.Logger.Info("a DRA driver has ended its report about the health of devices; asking again", keyDriver, d.name,
				telemetry.KeyError, err, telemetry.KeyRetryAfter, healthRetry)
		}
		select {
		case <-ctx.Done():
		case <-m.cfg.Clock.After(healthRetry):
		}
	}
}

// streamHealth records reports until the driver ends them. It returns why, and whether there was one.
func (m *Manager) streamHealth(ctx context.Context, d *driver) (reported bool, err error) {
	stream, err := d.health.NodeWatchResources(ctx, &drahealthv1.NodeWatchResourcesRequest{})
	if err != nil {
		return false, err
	}
	for {
		report, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return reported, errors.New("NodeWatchResources has ended")
		}
		if err != nil {
			return reported, err
		}
		reported = true
		m.tell(m.noteHealth(d, report.GetDevices()))
	}
}

// noteHealth records a report, and returns the pods with a device whose health has changed.
func (m *Manager) noteHealth(by *driver, report []*drahealthv1.DeviceHealth) []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, known, changed, ignored := m.cfg.Clock.Now(), m.health[by], map[deviceKey]bool{}, 0
	if known == nil {
		known = map[deviceKey]deviceHealth{}
		m.health[by] = known
	}
	reported := map[deviceKey]bool{}
	for _, d := range report {
		key := deviceKey{pool: d.GetDevice().GetPoolName(), name: d.GetDevice().GetDeviceName()}
		fresh := healthOf(d, now)
		before, has := known[key]
		if !has && len(known) >= maxHealth {
			ignored++
			continue
		}
		reported[key], known[key] = true, fresh
		if before.at = now; before != fresh {
			changed[key] = true
		}
	}
	for key, h := range known {
		if !reported[key] && now.Sub(h.at) > h.timeout {
			delete(known, key)
			changed[key] = true
		}
	}
	if ignored > 0 {
		m.cfg.Logger.Error("a DRA driver reports the health of too many devices; the rest is ignored", keyDriver, by.name,
			"limit", maxHealth, "ignored", ignored)
	}
	return m.book.Users(by.name, func(d *claimbook.Device) bool { return changed[deviceKey{pool: d.Pool, name: d.Name}] })
}

func healthOf(d *drahealthv1.DeviceHealth, now time.Time) deviceHealth {
	h := deviceHealth{
		health: v1.ResourceHealthStatusUnknown, message: d.GetMessage(), at: now, timeout: defaultHealthTimeout,
	}
	switch d.GetHealth() {
	case drahealthv1.HealthStatus_HEALTHY:
		h.health = v1.ResourceHealthStatusHealthy
	case drahealthv1.HealthStatus_UNHEALTHY:
		h.health = v1.ResourceHealthStatusUnhealthy
	case drahealthv1.HealthStatus_UNKNOWN:
	}
	if seconds := d.GetHealthCheckTimeoutSeconds(); seconds > 0 {
		h.timeout = time.Duration(min(seconds, maxTimeoutSeconds)) * time.Second
	}
	if longest := v1.ResourceHealthMessageMaxLength; len(h.message) > longest {
		h.message = h.message[:longest-len("...")] + "..."
	}
	return h
}

// dropHealth forgets the health of devices that a plugin has reported, because it does not report it any more. What
// other plugins of the driver report counts, such as that of its next version.
func (m *Manager) dropHealth(by *driver) {
	m.mu.Lock()
	had := m.health[by]
	delete(m.health, by)
	pods := m.book.Users(by.name, func(d *claimbook.Device) bool {
		_, has := had[deviceKey{pool: d.Pool, name: d.Name}]
		return has
	})
	ended := m.ctx.Err() != nil
	m.mu.Unlock()
	if !ended {
		m.tell(pods)
	}
}

func (m *Manager) tell(pods []types.UID) {
	for _, uid := range pods {
		m.cfg.PodChanged(uid)
	}
}

// Status returns the devices of a container's claims with their health, for its status, which the kubelet has for
// regular containers only.
func (m *Manager) Status(pod *v1.Pod, container string) []v1.ResourceStatus {
	var all []v1.ResourceStatus
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Name != container || len(c.Resources.Claims) == 0 {
			continue
		}
		names, err := namesOf(pod, c)
		if err != nil {
			return nil // the pod has not started yet
		}
		for _, used := range c.Resources.Claims {
			for _, n := range names {
				if n.reference != used.Name {
					continue
				}
				name := types.NamespacedName{Namespace: pod.Namespace, Name: n.claim}
				if devices := m.healthIn(name, used.Request); len(devices) > 0 {
					all = append(all, v1.ResourceStatus{Name: statusName(used), Resources: devices})
				}
			}
		}
	}
	return all
}

// statusName returns the kubelet's name of a claim in the status.
func statusName(used v1.ResourceClaim) v1.ResourceName {
	if used.Request == "" {
		return v1.ResourceName("claim:" + used.Name)
	}
	return v1.ResourceName("claim:" + used.Name + "/" + used.Request)
}

// healthIn returns the devices of a request of a claim with their health.
func (m *Manager) healthIn(name types.NamespacedName, request string) []v1.ResourceHealth {
	m.mu.Lock()
	defer m.mu.Unlock()
	claim, known := m.book.Claim(name)
	if !known {
		return nil
	}
	var all []v1.ResourceHealth
	seen := map[v1.ResourceID]bool{}
	for _, driver := range claim.DriverNames() {
		devices := claim.Drivers[driver].Devices
		for i := range devices {
			d := &devices[i]
			if !d.For(resourceclaim.BaseRequestRef(request)) {
				continue
			}
			one := m.healthOfDevice(driver, d)
			if !seen[one.ResourceID] {
				seen[one.ResourceID] = true
				all = append(all, one)
			}
		}
	}
	return all
}

// healthOfDevice returns the health of a device under the ID that the kubelet gives it. The caller holds mu.
func (m *Manager) healthOfDevice(driver string, d *claimbook.Device) v1.ResourceHealth {
	one := v1.ResourceHealth{
		ResourceID: v1.ResourceID(driver + "/" + d.Pool + "/" + d.Name), Health: v1.ResourceHealthStatusUnknown,
	}
	if len(d.CDI) > 0 {
		one.ResourceID = v1.ResourceID(d.CDI[0])
	}
	key := deviceKey{pool: d.Pool, name: d.Name}
	for _, by := range slices.Backward(m.drivers[driver]) { // the newest plugin that knows it
		h, has := m.health[by][key]
		if !has || m.cfg.Clock.Since(h.at) > h.timeout {
			continue
		}
		if one.Health = h.health; m.cfg.Messages && h.message != "" {
			one.Message = &h.message
		}
		break
	}
	return one
}
