package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// PeerUID returns the user of the process at the other end of a call, for a handler that gives something to some users
// only; ok is false when it is not known.
func PeerUID(ctx context.Context) (uid int, ok bool) {
	p, known := peer.FromContext(ctx)
	if !known {
		return 0, false
	}
	info, known := p.AuthInfo.(peerInfo)
	return info.uid, known
}

// peerInfo is what a handler can be told of the peer.
type peerInfo struct {
	credentials.CommonAuthInfo

	uid int
}

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "unix socket" }

// peerCredentials notes who the peer is. Nothing more is said on the connection than without it.
type peerCredentials struct {
	credentials.TransportCredentials
}

func newPeerCredentials() credentials.TransportCredentials {
	return peerCredentials{insecure.NewCredentials()}
}

// ServerHandshake implements credentials.TransportCredentials. A peer that cannot be asked for is nobody.
func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, is := conn.(*net.UnixConn)
	if !is {
		return c.TransportCredentials.ServerHandshake(conn)
	}
	cred, err := peerOf(socket)
	if err != nil {
		return nil, nil, err
	}
	return conn, peerInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity}, uid: int(cred.Uid)}, nil
}

// Clone implements credentials.TransportCredentials.
func (c peerCredentials) Clone() credentials.TransportCredentials {
	return peerCredentials{c.TransportCredentials.Clone()}
}
