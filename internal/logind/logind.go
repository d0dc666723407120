// Package logind delays a shutdown of the machine with systemd-logind's inhibitor locks of the mode delay, over the
// system's D-Bus, and receives the notification of a shutdown (systemd.io, "Inhibitor Locks"). nodestatus holds
// the lock and decides; the delay may also be extended before it starts, by root.
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

	// callTimeout bounds each call, and the authentication on the bus.
	callTimeout = 10 * time.Second
	// signalCapacity buffers signals while one is handled; a canceled shutdown has two.
	signalCapacity = 8
)

// SystemBus is the socket of the system's D-Bus.
const SystemBus = "/var/run/dbus/system_bus_socket"

// ErrGoingDown is returned if logind refuses a lock because a shutdown is in progress: it waits only for existing
// locks.
var ErrGoingDown = errors.New("logind is shutting the machine down already")

// ErrClosed is returned after the connection to the bus is lost.
var ErrClosed = errors.New("the connection to D-Bus is closed")

// Event is the result of Next.
type Event int

// The events.
const (
	// Preparing: a shutdown is in progress, and logind waits for the holders of locks.
	Preparing Event = iota + 1
	// CalledOff: the shutdown was canceled.
	CalledOff
	// Restarted: logind was restarted, possibly with other settings and without the lock.
	Restarted
)

// Conn is a connection to logind. Its methods must not be called concurrently.
type Conn struct {
	bus     *dbus.Conn
	cancel  context.CancelFunc
	signals chan *dbus.Signal
	// owner is the unique bus name of logind, to ignore signals of other senders.
	owner string
}

// Connect connects to the bus at a D-Bus address, the system's if it is empty (DBUS_SYSTEM_BUS_ADDRESS or SystemBus),
// and subscribes to signals. It fails if there is no bus or no logind. The caller must close the connection.
func Connect(ctx context.Context, address string) (*Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	// closes a connection that is not authenticated in time, so that Connect fails
	late := time.AfterFunc(callTimeout, cancel)
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

// listen subscribes before it reads logind's bus name, so that it misses nothing.
func (c *Conn) listen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.bus.Signal(c.signals)
	err := errors.Join(
		c.bus.AddMatchSignalContext(
			ctx,
			dbus.WithMatchSender(service),
			dbus.WithMatchObjectPath(object),
			dbus.WithMatchInterface(manager),
			dbus.WithMatchMember(prepare),
		),
		c.bus.AddMatchSignalContext(
			ctx,
			dbus.WithMatchSender(bus),
			dbus.WithMatchInterface(bus),
			dbus.WithMatchMember(ownership),
			dbus.WithMatchArg(0, service),
		),
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

// Close closes the connection. It does not release a lock.
func (c *Conn) Close() error {
	defer c.cancel()
	return c.bus.Close()
}

// Next returns the next event. It fails with ErrClosed, or with the error of ctx.
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

// event returns the event of a signal; 0 for an irrelevant signal. Any client of the bus may send signals to this
// process.
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

// InhibitDelay returns logind's maximum delay for locks: InhibitDelayMaxSec of logind.conf(5).
func (c *Conn) InhibitDelay(ctx context.Context) (time.Duration, error) {
	var microseconds uint64
	if err := c.property(ctx, "InhibitDelayMaxUSec", &microseconds); err != nil {
		return 0, err
	}
	const longest = uint64(1<<63-1) / uint64(time.Microsecond)
	return time.Duration(min(microseconds, longest)) * time.Microsecond, nil
}

// PreparingForShutdown reports whether a shutdown is in progress and logind waits for the holders of locks.
func (c *Conn) PreparingForShutdown(ctx context.Context) (bool, error) {
	var preparing bool
	err := c.property(ctx, "PreparingForShutdown", &preparing)
	return preparing, err
}

func (c *Conn) property(ctx context.Context, name string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	value := dbus.Variant{}
	err := c.bus.Object(service, object).
		CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, manager, name).
		Store(&value)
	if err == nil {
		err = value.Store(into)
	}
	if err != nil {
		return fmt.Errorf("ask logind for %s: %w", name, err)
	}
	return nil
}

// Inhibit takes a lock: logind delays a shutdown until it is closed, but not longer than InhibitDelay. It fails with
// ErrGoingDown during a shutdown.
func (c *Conn) Inhibit(ctx context.Context, who, why string) (io.Closer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var lock dbus.UnixFD
	err := c.bus.Object(service, object).
		CallWithContext(ctx, manager+".Inhibit", 0, "shutdown", who, why, "delay").
		Store(&lock)
	var refusal dbus.Error
	if errors.As(err, &refusal) && refusal.Name == "org.freedesktop.login1.OperationInProgress" {
		return nil, ErrGoingDown
	}
	if err != nil {
		return nil, fmt.Errorf("ask logind to wait with a shutdown: %w", err)
	}
	return os.NewFile(uintptr(lock), "inhibitor lock"), nil //nolint:gosec // no descriptor is below 0
}

// Reload triggers a reload of logind's configuration. It does not wait for it.
func (c *Conn) Reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	const hangup = int32(1)
	call := c.bus.Object(systemd, "/org/freedesktop/systemd1").
		CallWithContext(ctx, systemd+".Manager.KillUnit", 0, unit, "main", hangup)
	if call.Err != nil {
		return fmt.Errorf("have systemd reload %s: %w", unit, call.Err)
	}
	return nil
}
