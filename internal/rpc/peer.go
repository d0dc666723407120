package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// peerCredentials accept a unix connection only from root and from the user that this process runs as. The mode of the
// socket alone would let a whole group in.
type peerCredentials struct {
	credentials.TransportCredentials
	uid    uint32
	logger *slog.Logger
}

func newPeerCredentials(uid int, logger *slog.Logger) credentials.TransportCredentials {
	if logger == nil {
		logger = slog.Default()
	}
	return &peerCredentials{uid: uint32(uid), logger: logger} //nolint:gosec // a uid is not negative on Linux
}

// errRefused makes gRPC close the connection.
var errRefused = errors.New("peer is neither root nor the user of this process")

type peerInfo struct {
	credentials.CommonAuthInfo
}

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "unix-peer" }

// ServerHandshake implements credentials.TransportCredentials.
func (p *peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	uid, pid, err := peerOf(conn)
	if err != nil {
		return nil, nil, err
	}
	if uid != 0 && uid != p.uid {
		p.logger.Warn("refused a peer on the socket: run it as root or as the user of this process",
			"uid", uid, "pid", pid, "want_uid", p.uid, "socket", conn.LocalAddr().String())
		return nil, nil, errRefused
	}
	return conn, peerInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// ClientHandshake implements credentials.TransportCredentials; these credentials are a server's.
func (p *peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("peer credentials are for servers")
}

// Info implements credentials.TransportCredentials.
func (p *peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peer"}
}

// Clone implements credentials.TransportCredentials.
func (p *peerCredentials) Clone() credentials.TransportCredentials {
	c := *p
	return &c
}

func peerOf(conn net.Conn) (uid uint32, pid int32, err error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, 0, fmt.Errorf("connection of type %T: want a unix socket", conn)
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("read the peer of the socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, 0, fmt.Errorf("read the peer of the socket: %w", err)
	}
	if credErr != nil {
		return 0, 0, fmt.Errorf("read the peer of the socket: %w", credErr)
	}
	return cred.Uid, cred.Pid, nil
}
