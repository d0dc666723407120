package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// UsersFile is the name of the file that names the users of services: a line "SERVICE USER" for each, with the name or
	// the number of the user. Root writes it. It is beside the directories of the services, or beside a socket that is not
	// in one of them.
	UsersFile = "users"
	// maxUsersFile bounds the size of the file.
	maxUsersFile = 64 << 10
	// accessTimeout bounds the wait for the first byte of a server. It sends one at once, or closes the connection.
	accessTimeout = 200 * time.Millisecond
)

// ImpostorError is the refusal of a socket whose process runs as a user that may not be the service.
type ImpostorError struct {
	// Address is the address of the socket.
	Address string
	// Service is the service to which the name of the socket belongs.
	Service string
	Owner   Owner
	// Users is the path of the file that could allow the user; empty for a socket without a file.
	Users string
	// Err is why the file was not used; nil if it was, or if there is none.
	Err error
}

// Error implements error.
func (e *ImpostorError) Error() string {
	text := fmt.Sprintf("%s: %v serves there, and user %d may not be %s", e.Address, e.Owner, e.Owner.UID, e.Service)
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	text += ": end that process and remove its socket"
	if e.Users != "" {
		text += fmt.Sprintf("; if %s runs as that user on purpose, add the line '%[1]s %d' to %s as root",
			e.Service, e.Owner.UID, e.Users)
	}
	return text
}

// RefusedError is the refusal of this process's user by a service.
type RefusedError struct {
	// Address is the address of the service's socket.
	Address string
	// UID is the user.
	UID int
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refuses user %d, who has no role there: run the command as root, or start the service with "+
		"a role for the user, such as --observe-uids=%[2]d", e.Address, e.UID)
}

// CheckAccess returns a *RefusedError if the service of an address has closed a new connection at once, as it does with
// a user who has no role. Root has every role. Nothing may have been sent on the connection, which is not usable after
// that.
func CheckAccess(conn net.Conn, address string) error {
	uid := os.Geteuid()
	if uid == 0 {
		return nil
	}
	if err := conn.SetReadDeadline(time.Now().Add(accessTimeout)); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return &RefusedError{Address: address, UID: uid}
	}
	return nil
}

// Connect connects to the process that serves an address, unix:///ABSOLUTE/PATH or unix-abstract:NAME. The process must
// run as root, as the own user, or as the user that UsersFile gives to the service; otherwise the error is an
// *ImpostorError. The user is that of the call of listen(2). Where nobody serves, it connects to the place that v0.1.0
// has for the socket.
func Connect(ctx context.Context, address string) (net.Conn, error) {
	name, err := socketName(address)
	if err != nil {
		return nil, err
	}
	conn, name, err := dial(ctx, name)
	if err != nil {
		return nil, err
	}
	return checked(conn, name)
}

// connectThere is Connect without the place that v0.1.0 has for the socket.
func connectThere(ctx context.Context, address string) (net.Conn, error) {
	name, err := socketName(address)
	if err != nil {
		return nil, err
	}
	conn, err := dialOnly(ctx, name)
	if err != nil {
		return nil, err
	}
	return checked(conn, name)
}

// checked returns a connection whose server may serve the name, and closes another one.
func checked(conn *net.UnixConn, name string) (net.Conn, error) {
	if err := checkServer(conn, addressOf(name), name); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// dial connects to a socket, or where nobody serves there, to its earlier place. It returns the name of the place that
// serves. The error is that of the first place if nobody serves at either.
func dial(ctx context.Context, name string) (*net.UnixConn, string, error) {
	conn, err := dialOnly(ctx, name)
	if err == nil || !nobodyServes(err) {
		return conn, name, err
	}
	earlier := layout.EarlierSocket(name)
	if earlier == "" {
		return nil, name, err
	}
	conn, earlierErr := dialOnly(ctx, earlier)
	if earlierErr != nil {
		return nil, name, err
	}
	return conn, earlier, nil
}

func dialOnly(ctx context.Context, name string) (*net.UnixConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", name)
	if err != nil {
		return nil, err
	}
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s: the connection is no unix socket", name), conn.Close())
	}
	return socket, nil
}

// nobodyServes reports whether an error of connecting says that there is no socket, or that no process listens on it.
func nobodyServes(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// checkServer returns an error unless the process at the other end of a connection may be the service of the socket.
func checkServer(conn *net.UnixConn, address, name string) error {
	owner, err := ownerOf(conn)
	if err != nil {
		return err
	}
	return mayServe(owner, address, name)
}

// mayServe returns nil if a process may be the service of a socket.
func mayServe(owner Owner, address, name string) error {
	if owner.UID == 0 || owner.UID == os.Geteuid() {
		return nil
	}
	refusal := &ImpostorError{Address: address, Service: string(layout.ServiceOf(name)), Owner: owner}
	if strings.HasPrefix(name, "@") {
		return refusal
	}
	refusal.Users = filepath.Join(layout.SharedDir(name), UsersFile)
	var uids []int
	if uids, refusal.Err = usersOf(refusal.Users, refusal.Service); refusal.Err != nil {
		return refusal
	}
	for _, uid := range uids {
		if uid == owner.UID {
			return nil
		}
	}
	return refusal
}

// usersOf returns the users of a service. A missing file names nobody. Only a file that nobody else than root and the
// own user can change is used.
func usersOf(path, service string) (uids []int, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Nlink != 1:
		return nil, fmt.Errorf("%s is not used: it is not a regular file with one name", path)
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s is not used: it belongs to user %d and not to root", path, stat.Uid)
	case stat.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0:
		return nil, fmt.Errorf("%s is not used: others than its owner may write it (chmod 0644)", path)
	case stat.Size > maxUsersFile:
		return nil, fmt.Errorf("%s is not used: it has more than %d bytes", path, maxUsersFile)
	}
	content := make([]byte, stat.Size)
	n, err := file.ReadAt(content, 0)
	if int64(n) != stat.Size {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return parseUsers(string(content), service)
}

// parseUsers returns the users of a service in the text of UsersFile. Empty lines and those that begin with # count
// for nothing.
func parseUsers(text, service string) (uids []int, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("the line '%s' is not SERVICE USER", strings.TrimSpace(line))
		}
		if fields[0] != service {
			continue
		}
		uid, err := userID(fields[1])
		if err != nil {
			return nil, err
		}
		uids = append(uids, uid)
	}
	return uids, nil
}

// userID returns the number of a user that is given by number or name.
func userID(text string) (int, error) {
	if uid, err := strconv.ParseUint(text, 10, 32); err == nil {
		return int(uid), nil
	}
	known, err := user.Lookup(text)
	if err != nil {
		return 0, fmt.Errorf("the user %s: %w", text, err)
	}
	return strconv.Atoi(known.Uid)
}

// CheckServer connects to the process that serves an address, and returns the *ImpostorError or the *RefusedError if
// there is one. Any other failure to connect is no error.
func CheckServer(ctx context.Context, address string) error {
	conn, err := Connect(ctx, address)
	if err == nil {
		err = CheckAccess(conn, address)
		_ = conn.Close() // nothing was sent on it
		return err
	}
	var impostor *ImpostorError
	if errors.As(err, &impostor) {
		return impostor
	}
	return nil
}
