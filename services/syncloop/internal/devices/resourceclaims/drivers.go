package resourceclaims

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	drahealthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// connectTimeout bounds an attempt to connect to a driver, and firstRedial and lastRedial are the pauses between them.
	connectTimeout, firstRedial, lastRedial = 10 * time.Second, 50 * time.Millisecond, time.Second
	// maxNameLength is the API's limit for the name of a driver.
	maxNameLength = 63
	// maxPlugins bounds the number of registered plugins. A node has a few.
	maxPlugins = 256
)

// services are the names of the gRPC services by which a driver offers the API, and healthServices those for the
// health of devices, the newest first.
var (
	services       = []string{drav1.DRAPluginService, drav1beta1.DRAPluginService}
	healthServices = []string{drahealthv1.DRAResourceHealthService, drahealthv1alpha1.DRAResourceHealthService}
)

// driver is a registered plugin of a driver.
type driver struct {
	name, endpoint string
	conn           *grpc.ClientConn
	// client calls the plugin, in the version that it offers; health is nil if it does not know the health of devices.
	client drav1.DRAPluginClient
	health drahealthv1.DRAResourceHealthClient
	// connected is true while the connection is up; guarded by Manager.mu.
	connected bool
	// cancel ends what follows the plugin, and over is closed after that.
	cancel context.CancelFunc
	over   chan struct{}
}

// Validate returns why a driver that the plugin manager has found cannot be registered; nil if it can. Versions are the
// names of gRPC services.
func (m *Manager) Validate(name, endpoint string, versions []string) error {
	_, err := choose(versions)
	if problems := validation.IsDNS1123Subdomain(name); err == nil && len(problems) > 0 {
		err = fmt.Errorf("the name of the driver is invalid: %s", problems[0])
	}
	if err == nil && len(name) > maxNameLength {
		err = fmt.Errorf("the name of the driver has more than %d characters", maxNameLength)
	}
	if err != nil {
		return fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %.64s at endpoint %.256s: %w", name,
			endpoint, err)
	}
	return nil
}

// choose returns the service to call; like the kubelet, the first one that the plugin names.
func choose(versions []string) (string, error) {
	if len(versions) == 0 {
		return "", errors.New("empty list of supported gRPC services (aka supported versions)")
	}
	at := slices.IndexFunc(versions, func(v string) bool { return slices.Contains(services, v) })
	if at < 0 {
		return "", fmt.Errorf("none of services supported by the plugin (%q) are supported by the kubelet (%q)", versions,
			services)
	}
	return versions[at], nil
}

// Register registers the plugin of a driver. A driver may have several plugins, such as during its update.
func (m *Manager) Register(name, endpoint string, versions []string) error {
	if err := m.Validate(name, endpoint, versions); err != nil {
		return err
	}
	service, err := choose(versions)
	if err != nil {
		return err
	}
	d := &driver{name: name, endpoint: endpoint, over: make(chan struct{})}
	if d.conn, err = m.dial(name, endpoint); err != nil {
		return fmt.Errorf("create gRPC connection to DRA driver %s plugin at endpoint %s: %w", name, endpoint, err)
	}
	if d.client = drav1.NewDRAPluginClient(d.conn); service == drav1beta1.DRAPluginService {
		d.client = drav1beta1.V1Beta1ClientWrapper{DRAPluginClient: drav1beta1.NewDRAPluginClient(d.conn)}
	}
	switch {
	case !m.cfg.Health:
	case slices.Contains(versions, healthServices[0]):
		d.health = drahealthv1.NewDRAResourceHealthClient(d.conn)
	case slices.Contains(versions, healthServices[1]):
		d.health = drahealthv1.V1Alpha1ClientWrapper{Client: drahealthv1alpha1.NewDRAResourceHealthClient(d.conn)}
	}
	if err := m.add(d); err != nil {
		return errors.Join(err, d.conn.Close())
	}
	m.mu.Lock()
	waiting := m.waiting[name]
	delete(m.waiting, name)
	m.mu.Unlock()
	for uid := range waiting {
		m.cfg.PodChanged(uid)
	}
	return nil
}

func (m *Manager) dial(name, endpoint string) (*grpc.ClientConn, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	return grpc.NewClient("passthrough:///dra-driver",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRedial, Multiplier: 2, Jitter: 0.2, MaxDelay: lastRedial},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithChainUnaryInterceptor(m.cfg.Metrics.intercept(name, m.cfg.Clock)),
	)
}

// add adds a plugin and starts to follow it.
func (m *Manager) add(d *driver) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	registered := 0
	for _, list := range m.drivers {
		registered += len(list)
	}
	same := func(other *driver) bool { return other.endpoint == d.endpoint }
	switch {
	case m.ctx == nil || m.ctx.Err() != nil:
		return errors.New("the registration of DRA drivers has not begun, or has ended")
	case slices.ContainsFunc(m.drivers[d.name], same):
		return fmt.Errorf("endpoint %s already registered for DRA driver plugin %s", d.endpoint, d.name)
	case registered >= maxPlugins:
		return fmt.Errorf("there are %d plugins of DRA drivers already", registered)
	}
	ctx, cancel := context.WithCancel(m.ctx)
	d.cancel = cancel
	m.drivers[d.name] = append(m.drivers[d.name], d)
	m.noteUsable(d.name)
	m.group.Go(func() { m.follow(ctx, d) })
	if d.health != nil {
		m.group.Go(func() { m.watchHealth(ctx, d) })
	}
	return nil
}

// follow keeps the connection to a plugin, and notes whether it is up, until ctx ends.
func (m *Manager) follow(ctx context.Context, d *driver) {
	defer close(d.over)
	for {
		state := d.conn.GetState()
		if state == connectivity.Idle {
			d.conn.Connect()
		}
		m.mu.Lock()
		changed := d.connected != (state == connectivity.Ready)
		if changed && ctx.Err() == nil {
			d.connected = !d.connected
			m.noteUsable(d.name)
		}
		m.mu.Unlock()
		if changed {
			m.cfg.Logger.Debug("the connection to a DRA driver has changed", keyDriver, d.name, telemetry.KeyFile, d.endpoint,
				"state", state.String())
		}
		if !d.conn.WaitForStateChange(ctx, state) {
			break
		}
	}
	if err := d.conn.Close(); err != nil {
		m.cfg.Logger.Warn("cannot close the connection to a DRA driver", keyDriver, d.name, telemetry.KeyError, err)
	}
}

// Deregister removes the plugin of a driver, and returns when its connection is closed, or when ctx ends.
func (m *Manager) Deregister(ctx context.Context, name, endpoint string) {
	m.mu.Lock()
	var gone *driver
	list := m.drivers[name]
	if at := slices.IndexFunc(list, func(d *driver) bool { return d.endpoint == endpoint }); at >= 0 {
		gone = list[at]
		m.drivers[name] = slices.Delete(slices.Clone(list), at, at+1)
	}
	if len(m.drivers[name]) == 0 {
		delete(m.drivers, name)
	}
	if gone != nil {
		m.noteUsable(name)
	}
	m.mu.Unlock()
	if gone == nil {
		return
	}
	gone.cancel()
	select {
	case <-gone.over:
	case <-ctx.Done():
	}
}

// driver returns the plugin of a driver that gets the calls for a pod: the last registered one that is connected, or
// else the last registered one. If there is none, the pod is told when there is.
func (m *Manager) driver(name string, pod types.UID) (*driver, error) {
	if name == "" {
		return nil, errors.New("DRA driver name is empty")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var found *driver
	for _, d := range slices.Backward(m.drivers[name]) {
		if d.connected {
			return d, nil
		}
		found = cmp.Or(found, d)
	}
	if found == nil {
		if m.waiting[name] == nil {
			m.waiting[name] = map[types.UID]bool{}
		}
		m.waiting[name][pod] = true
		return nil, fmt.Errorf("DRA driver %s is not registered", name)
	}
	return found, nil
}

// usable reports whether a driver can be called. The caller holds mu.
func (m *Manager) usable(name string) bool {
	return slices.ContainsFunc(m.drivers[name], func(d *driver) bool { return d.connected })
}

func (d *driver) prepare(ctx context.Context, claims []*drav1.Claim) (*drav1.NodePrepareResourcesResponse, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	answer, err := d.client.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: claims})
	return answer, opaque(err)
}

func (d *driver) unprepare(ctx context.Context, claims []*drav1.Claim) (*drav1.NodeUnprepareResourcesResponse, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	answer, err := d.client.NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: claims})
	return answer, opaque(err)
}

// opaque returns an error with the same text and without a gRPC code. A code would be taken for one of the runtime.
func opaque(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}
