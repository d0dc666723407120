// Package csidrivers knows the CSI drivers of this node: package plugins registers them with it, and each one describes
// the node. Volumes are mounted through its connections, and nodestatus publishes the descriptions as a CSINode.
package csidrivers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
)

const (
	// callTimeout bounds a call of a driver, as in the kubelet.
	callTimeout = 2 * time.Minute
	// lookInterval is the interval of looks for drivers whose description is to be refreshed. It is the shortest period
	// that the API server accepts for that.
	lookInterval = 10 * time.Second
	// objectTimeout bounds the request for the object of a driver, which is cached.
	objectTimeout = 5 * time.Second
)

// NotRegisteredError is returned for a driver that is not registered on this node.
type NotRegisteredError struct{ Driver string }

// Error implements error, in the kubelet's words.
func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers", e.Driver)
}

// WaitsFor returns what a caller waits for, as it is shown to users.
func (e *NotRegisteredError) WaitsFor() string { return WaitsFor(e.Driver) }

// WaitsFor returns the words for a wait for the registration of a driver.
func WaitsFor(driver string) string { return "CSI driver " + driver }

// Config holds the parameters of Drivers.
type Config struct {
	// Object returns the object of a driver in the cluster; nil without an error if there is none. Required.
	Object func(ctx context.Context, driver string) (*storagev1.CSIDriver, error)
	// Changed is called after a driver was registered, deregistered or refreshed. It must not block. Required.
	Changed func()
	// Intercept returns what intercepts the calls of a driver; it may be nil.
	Intercept func(driver string) grpc.UnaryClientInterceptor
	// Clock is the clock. Required.
	Clock clock.Clock
	// Logger logs failures; slog.Default if nil.
	Logger *slog.Logger
}

// Drivers are the registered drivers. Create them with New. They implement plugins.Handler for the type CSIPlugin. The
// methods are safe for concurrent use.
type Drivers struct {
	cfg Config
	// due requests a refresh of the drivers that Refresh has marked. Its capacity is one, because one covers all.
	due chan struct{}

	mu      sync.Mutex
	drivers map[string]*driver
	// registering has the socket whose driver is being registered, by name.
	registering map[string]string
}

var _ plugins.Handler = (*Drivers)(nil)

// driver is a registered driver.
type driver struct {
	plugin  plugins.Plugin
	version *version.Version
	conn    *conn
	node    Node
	// described is the time of the description, refreshing is true while the driver is asked for another one, and stale is
	// true if Refresh has requested one.
	described         time.Time
	refreshing, stale bool
	// trouble is the last logged failure of a refresh.
	trouble string
}

// New returns Drivers without drivers.
func New(cfg Config) *Drivers {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Drivers{
		cfg: cfg, due: make(chan struct{}, 1), drivers: map[string]*driver{}, registering: map[string]string{},
	}
}

// Conn returns the connection to a driver. It returns a *NotRegisteredError if the driver is not registered. A
// connection of a driver that is deregistered afterwards fails with codes.Unavailable; calls in progress go on.
func (d *Drivers) Conn(name string) (grpc.ClientConnInterface, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.drivers[name]
	if known == nil {
		return nil, &NotRegisteredError{Driver: name}
	}
	return known.conn, nil
}

// Nodes returns the descriptions of this node by all drivers, sorted by their names. They must not be changed.
func (d *Drivers) Nodes() []Node {
	d.mu.Lock()
	defer d.mu.Unlock()
	nodes := make([]Node, 0, len(d.drivers))
	for _, known := range d.drivers {
		nodes = append(nodes, known.node)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Driver, b.Driver) })
	return nodes
}

// Validate implements plugins.Handler. A driver is refused if its name is invalid, if it does not support version 1.x,
// and if another socket has registered the same name with at least the same version.
func (d *Drivers) Validate(_ context.Context, p plugins.Plugin) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.accept(p); err != nil {
		return fmt.Errorf("validation failed for CSI Driver %.64s at endpoint %.256s: %w", p.Name, p.Endpoint, err)
	}
	return nil
}

// accept returns the highest version of a driver, or why it cannot be registered. The caller holds mu.
func (d *Drivers) accept(p plugins.Plugin) (*version.Version, error) {
	if err := checkName(p.Name); err != nil {
		return nil, err
	}
	found, err := highest(p.Name, p.Versions)
	if err != nil {
		return nil, err
	}
	if known := d.drivers[p.Name]; known != nil && !known.version.LessThan(found) {
		return nil, fmt.Errorf("CSI driver %q failed. Another driver with the same name is already registered with a "+
			"higher supported version: %q (by the socket %s)", p.Name, known.version, known.plugin.Socket)
	}
	if socket, busy := d.registering[p.Name]; busy {
		return nil, fmt.Errorf("CSI driver %q is being registered by the socket %s", p.Name, socket)
	}
	return found, nil
}

// Register implements plugins.Handler. It asks the driver about this node. A driver with a lower version stays
// registered until this one has answered.
func (d *Drivers) Register(ctx context.Context, p plugins.Plugin) error {
	d.mu.Lock()
	found, err := d.accept(p)
	if err == nil {
		d.registering[p.Name] = p.Socket
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	fresh, err := d.connect(ctx, p)
	d.mu.Lock()
	delete(d.registering, p.Name)
	var replaced *driver
	if err == nil {
		replaced = d.drivers[p.Name]
		fresh.version = found
		d.drivers[p.Name] = fresh
	}
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if replaced != nil {
		replaced.conn.release()
	}
	d.cfg.Changed()
	return nil
}

// connect connects to a driver, and asks it about this node.
func (d *Drivers) connect(ctx context.Context, p plugins.Plugin) (*driver, error) {
	var interceptors []grpc.UnaryClientInterceptor
	if d.cfg.Intercept != nil {
		interceptors = append(interceptors, d.cfg.Intercept(p.Name))
	}
	c, err := dial(p.Endpoint, interceptors...)
	if err != nil {
		return nil, fmt.Errorf("connect to the endpoint %s: %w", p.Endpoint, err)
	}
	node, err := describe(ctx, p.Name, c)
	if err != nil {
		c.release()
		return nil, err
	}
	return &driver{plugin: p, conn: c, node: node, described: d.cfg.Clock.Now()}, nil
}

// Deregister implements plugins.Handler. A driver that another socket has registered meanwhile stays.
func (d *Drivers) Deregister(_ context.Context, p plugins.Plugin) {
	d.mu.Lock()
	known := d.drivers[p.Name]
	if known == nil || known.plugin.Socket != p.Socket {
		d.mu.Unlock()
		return
	}
	delete(d.drivers, p.Name)
	d.mu.Unlock()
	known.conn.release()
	d.cfg.Changed()
}

// Close ends the connections to all drivers, without a change that is notified. Call it when nothing registers or uses
// drivers any more.
func (d *Drivers) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, known := range d.drivers {
		known.conn.release()
	}
	d.drivers = map[string]*driver{}
}
