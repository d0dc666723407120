package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
)

// PeerUID returns the user ID of a call's peer process, for handlers that authorize by user; ok is false if it is
// unknown.
func PeerUID(ctx context.Context) (uid int, ok bool) {
	p, known := peer.FromContext(ctx)
	if !known {
		return 0, false
	}
	info, known := p.AuthInfo.(peerInfo)
	return info.uid, known
}

// peerInfo holds the facts about the peer that handlers can read.
type peerInfo struct {
	credentials.CommonAuthInfo

	uid int
}

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "unix socket" }

// peerCredentials records the peer's credentials. It does not change the protocol of the connection.
type peerCredentials struct {
	credentials.TransportCredentials
}

func newPeerCredentials() credentials.TransportCredentials {
	return peerCredentials{insecure.NewCredentials()}
}

// ServerHandshake implements credentials.TransportCredentials. A peer whose credentials cannot be read has none.
func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return c.TransportCredentials.ServerHandshake(conn)
	}
	cred, err := peerOf(socket)
	if err != nil {
		return nil, nil, err
	}
	return conn, peerInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.NoSecurity},
		uid:            int(cred.Uid),
	}, nil
}

// Clone implements credentials.TransportCredentials.
func (c peerCredentials) Clone() credentials.TransportCredentials {
	return peerCredentials{c.TransportCredentials.Clone()}
}
