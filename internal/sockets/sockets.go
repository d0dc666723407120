// Package sockets keeps the listening TCP sockets of a process open while the process restarts. The process that starts
// it, package supervisor or systemd, holds the descriptors and passes them to each start by the protocol of
// sd_listen_fds(3). A connection that is made in between waits in the backlog of the socket and is answered after the
// restart.
//
// A socket has a name and an address. A process uses a passed socket only if both match its configuration, and shuts
// down a socket whose address has changed, so that no holder serves the old address. A process without a passed socket
// listens by itself.
package sockets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"sync"

	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/systemd"
)

// The keys of log lines.
const keySocket, keyAddress = "socket", "address"

// Socket is a TCP socket of the configuration of a process.
type Socket struct {
	// Name is the purpose of the socket and its FDNAME in the protocol. It contains no colon.
	Name string
	// Address is HOST:PORT; empty if the configuration turns the socket off.
	Address string
}

// Shared is a socket of one of several processes whose parent holds the sockets of all.
type Shared struct {
	Socket
	// Key is its name in the set of the parent, and in systemd's store. The process itself knows the socket by its Name,
	// which another process may have for a socket of its own.
	Key string
}

// InSet returns the socket by its name in the set of the parent.
func (s Shared) InSet() Socket { return Socket{Name: s.Key, Address: s.Address} }

// Set is a set of open sockets: those that the process was passed, and those that it holds for other processes. The
// zero value is empty. The methods may be called concurrently for different names. Keep, Listen and Close are valid on
// a nil Set, which stays empty.
type Set struct {
	// systemd stores the sockets during a restart, if systemd has started the process.
	systemd systemd.Notifier

	mu   sync.Mutex
	held map[string]*os.File
}

// Take removes the passed sockets from the environment of this process and returns them. Call it before anything is
// started, because child processes inherit the descriptors until then. The notifier is that of the systemd that has
// started the process.
func Take(notifier systemd.Notifier) *Set {
	s := &Set{systemd: notifier, held: map[string]*os.File{}}
	for _, file := range given() {
		if _, twice := s.held[file.Name()]; twice {
			_ = file.Close() // the first one of a name counts
			continue
		}
		s.held[file.Name()] = file
	}
	return s
}

// Keep closes every socket that is not in wanted: one with another address is shut down, one with an unknown name only
// closed.
func (s *Set) Keep(wanted []Socket, logger *slog.Logger) {
	if s == nil {
		return
	}
	addresses := map[string]string{}
	for _, socket := range wanted {
		addresses[socket.Name] = socket.Address
	}
	s.mu.Lock()
	held := maps.Clone(s.held)
	s.mu.Unlock()
	for name, file := range held {
		switch address, known := addresses[name]; {
		case !known:
			logger.Info("closing a passed socket with an unknown name", keySocket, name, keyAddress, addressOf(file))
			s.remove(name, logger)
		case address == "" || !has(file, address):
			s.drop(name, logger)
		}
	}
}

// Listen returns a listener on the passed socket, or else on a new one, which systemd is asked to store. A passed
// socket stays open when the listener is closed.
func (s *Set) Listen(ctx context.Context, socket Socket, logger *slog.Logger) (net.Listener, error) {
	if file := s.find(socket); file != nil {
		return net.FileListener(file)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", socket.Address)
	if err != nil || s == nil || s.systemd.Socket == "" || fits(listener, socket.Address) != nil {
		return listener, err
	}
	file, err := fileOf(listener)
	if err != nil {
		logger.Warn("a socket is not kept open while this process restarts", keySocket, socket.Name,
			keyAddress, socket.Address, logging.KeyError, err)
		return listener, nil
	}
	s.add(socket, file, logger)
	return listener, nil
}

// Held is an open socket to pass to a process.
type Held struct {
	Name string
	File *os.File
}

// Hold returns a socket to pass to a process. It opens the socket if it is not open or its address has changed, and
// keeps it open. The second result is false for a socket without an address, which Hold closes.
func (s *Set) Hold(ctx context.Context, socket Socket, logger *slog.Logger) (Held, bool, error) {
	if file := s.find(socket); file != nil {
		return Held{Name: socket.Name, File: file}, true, nil
	}
	s.drop(socket.Name, logger)
	if socket.Address == "" {
		return Held{}, false, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", socket.Address)
	if err != nil {
		return Held{}, false, err
	}
	if fits(listener, socket.Address) != nil { // port 0, which is another port at each start
		return Held{}, false, listener.Close()
	}
	file, err := fileOf(listener)
	if err = errors.Join(err, listener.Close()); err != nil {
		return Held{}, false, fmt.Errorf("%s: %w", socket.Address, err)
	}
	s.add(socket, file, logger)
	return Held{Name: socket.Name, File: file}, true, nil
}

// Close closes the sockets. systemd keeps those that it stores.
func (s *Set) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	held := s.held
	s.held = map[string]*os.File{}
	s.mu.Unlock()
	var errs []error
	for _, file := range held {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}

// find returns the open socket with the name and the address, or nil.
func (s *Set) find(socket Socket) *os.File {
	if s == nil || socket.Address == "" {
		return nil
	}
	s.mu.Lock()
	file := s.held[socket.Name]
	s.mu.Unlock()
	if file == nil || !has(file, socket.Address) {
		return nil
	}
	return file
}

// add adds a new socket.
func (s *Set) add(socket Socket, file *os.File, logger *slog.Logger) {
	s.drop(socket.Name, logger)
	s.mu.Lock()
	if s.held == nil {
		s.held = map[string]*os.File{}
	}
	s.held[socket.Name] = file
	s.mu.Unlock()
	s.systemd.Store(socket.Name, file, logger)
}

// drop shuts down and closes the socket of a name, if there is one. The shutdown also ends it for every other holder of
// the descriptor, so that the address is free at once.
func (s *Set) drop(name string, logger *slog.Logger) {
	s.mu.Lock()
	file := s.held[name]
	s.mu.Unlock()
	if file == nil {
		return
	}
	logger.Info("closing a socket whose address is no longer configured", keySocket, name, keyAddress, addressOf(file))
	if err := shutdown(file); err != nil {
		logger.Warn("a socket whose address is no longer configured may stay open", keySocket, name,
			keyAddress, addressOf(file), logging.KeyError, err)
	}
	s.remove(name, logger)
}

// remove closes the socket of a name, and has systemd close its copy.
func (s *Set) remove(name string, logger *slog.Logger) {
	s.mu.Lock()
	file := s.held[name]
	delete(s.held, name)
	s.mu.Unlock()
	_ = file.Close() // nothing was written
	s.systemd.Forget(name, logger)
}
