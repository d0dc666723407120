// Package logind asks systemd-logind, over the system's D-Bus, to wait with a shutdown of the machine, and hears of it when one is
// to come: systemd.io's inhibitor locks, of the mode delay. It decides nothing; package shutdown does.
package logind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	service   = "org.freedesktop.login1"
	object    = dbus.ObjectPath("/org/freedesktop/login1")
	manager   = "org.freedesktop.login1.Manager"
	prepare   = "PrepareForShutdown"
	systemd   = "org.freedesktop.systemd1"
	unit      = "systemd-logind.service"
	bus       = "org.freedesktop.DBus"
	ownership = "NameOwnerChanged"

	// callTimeout bounds each call, and the time until the bus has let this process in: who does not answer is away.
	callTimeout = 10 * time.Second
	// signalCapacity takes the signals that come while one is being acted on: there are two for a shutdown that is called off.
	signalCapacity = 8
)

// SystemBus is the socket of the system's D-Bus.
const SystemBus = "/var/run/dbus/system_bus_socket"

// ErrGoingDown says that logind gives no lock any more, for a shutdown is to come: it waits for those who have one, and for nobody else.
var ErrGoingDown = errors.New("logind is shutting the machine down already")

// ErrClosed says that the connection to the bus is gone.
var ErrClosed = errors.New("the connection to D-Bus is closed")

// Event is what Next returns.
type Event int

// The events.
const (
	// Preparing: a shutdown is to come, and logind waits for those who have a lock.
	Preparing Event = iota + 1
	// CalledOff: it does not come.
	CalledOff
	// Restarted: there is another logind than before, which may have other settings and know of no lock.
	Restarted
)

// Conn is a connection to logind. Its methods may be called by one goroutine at a time.
type Conn struct {
	bus     *dbus.Conn
	cancel  context.CancelFunc
	signals chan *dbus.Signal
	// owner is the name of logind's own connection: what anybody else sends is not from logind.
	owner string
}

// Connect connects to the bus at a D-Bus address, the system's when that is empty (DBUS_SYSTEM_BUS_ADDRESS or
// SystemBus), and begins to listen. It fails when there is no bus or no logind. Close it.
func Connect(ctx context.Context, address string) (*Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(callTimeout, cancel) // a bus that lets nobody in is closed, and Connect fails
	connected, err := connect(ctx, address)
	if !late.Stop() && err == nil {
		err = errors.Join(context.DeadlineExceeded, connected.Close())
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("connect to D-Bus: %w", err)
	}
	c := &Conn{bus: connected, cancel: cancel, signals: make(chan *dbus.Signal, signalCapacity)}
	if err := c.listen(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func connect(ctx context.Context, address string) (*dbus.Conn, error) {
	if address == "" {
		return dbus.ConnectSystemBus(dbus.WithContext(ctx))
	}
	return dbus.Connect(address, dbus.WithContext(ctx))
}

// listen subscribes first and asks who logind is then, so that nothing is missed in between.
func (c *Conn) listen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.bus.Signal(c.signals)
	err := errors.Join(
		c.bus.AddMatchSignalContext(ctx, dbus.WithMatchSender(service), dbus.WithMatchObjectPath(object), dbus.WithMatchInterface(manager), dbus.WithMatchMember(prepare)),
		c.bus.AddMatchSignalContext(ctx, dbus.WithMatchSender(bus), dbus.WithMatchInterface(bus), dbus.WithMatchMember(ownership), dbus.WithMatchArg(0, service)),
	)
	if err != nil {
		return fmt.Errorf("subscribe to logind: %w", err)
	}
	if _, err := c.InhibitDelay(ctx); err != nil { // the bus may start logind for it
		return err
	}
	if err := c.bus.BusObject().CallWithContext(ctx, bus+".GetNameOwner", 0, service).Store(&c.owner); err != nil {
		return fmt.Errorf("ask D-Bus for logind: %w", err)
	}
	return nil
}

// Close closes the connection. A lock outlives it.
func (c *Conn) Close() error {
	defer c.cancel()
	return c.bus.Close()
}

// Next returns the next event. It fails with ErrClosed, or with ctx's error when that ends.
func (c *Conn) Next(ctx context.Context) (Event, error) {
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case signal, open := <-c.signals:
			if !open {
				return 0, ErrClosed
			}
			if event := c.event(signal); event != 0 {
				return event, nil
			}
		}
	}
}

// event is what a signal says; 0 when it is none to act on. Anybody on the bus may send this process a signal.
func (c *Conn) event(signal *dbus.Signal) Event {
	switch {
	case signal.Sender == c.owner && signal.Path == object && signal.Name == manager+"."+prepare && len(signal.Body) == 1:
		if begins, ok := signal.Body[0].(bool); !ok {
			return 0
		} else if begins {
			return Preparing
		}
		return CalledOff
	case signal.Sender == bus && signal.Name == bus+"."+ownership && len(signal.Body) == 3:
		if c.owner, _ = signal.Body[2].(string); c.owner != "" {
			return Restarted
		}
	}
	return 0
}

// InhibitDelay is how long logind waits for those who have a lock: InhibitDelayMaxSec of logind.conf(5).
func (c *Conn) InhibitDelay(ctx context.Context) (time.Duration, error) {
	var microseconds uint64
	if err := c.property(ctx, "InhibitDelayMaxUSec", &microseconds); err != nil {
		return 0, err
	}
	const longest = uint64(1<<63-1) / uint64(time.Microsecond)
	return time.Duration(min(microseconds, longest)) * time.Microsecond, nil
}

// PreparingForShutdown tells whether a shutdown is to come and logind waits for those who have a lock.
func (c *Conn) PreparingForShutdown(ctx context.Context) (bool, error) {
	var preparing bool
	err := c.property(ctx, "PreparingForShutdown", &preparing)
	return preparing, err
}

func (c *Conn) property(ctx context.Context, name string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	value := dbus.Variant{}
	err := c.bus.Object(service, object).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name).Store(&value)
	if err == nil {
		err = value.Store(into)
	}
	if err != nil {
		return fmt.Errorf("ask logind for %s: %w", name, err)
	}
	return nil
}

// Inhibit takes a lock: logind waits with a shutdown until it is closed, for InhibitDelay at most. It fails with ErrGoingDown.
func (c *Conn) Inhibit(ctx context.Context, who, why string) (io.Closer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var lock dbus.UnixFD
	err := c.bus.Object(service, object).CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", who, why, "delay").Store(&lock)
	var refusal dbus.Error
	if errors.As(err, &refusal) && refusal.Name == "org.freedesktop.login1.OperationInProgress" {
		return nil, ErrGoingDown
	}
	if err != nil {
		return nil, fmt.Errorf("ask logind to wait with a shutdown: %w", err)
	}
	return os.NewFile(uintptr(lock), "inhibitor lock"), nil //nolint:gosec // no descriptor is below 0
}

// Reload has logind read its configuration again. It returns before that has happened.
func (c *Conn) Reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	const hangup = int32(1)
	call := c.bus.Object(systemd, "/org/freedesktop/systemd1").CallWithContext(ctx, systemd+".Manager.KillUnit", 0, unit, "main", hangup)
	if call.Err != nil {
		return fmt.Errorf("have systemd reload %s: %w", unit, call.Err)
	}
	return nil
}
