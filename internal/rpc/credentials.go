package rpc

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/quartet-node/quartet/internal/peertls"
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

// PeerNames returns the names of the certificate of a call's peer on another machine; ok is false for a peer on this
// machine.
func PeerNames(ctx context.Context) (names []string, ok bool) {
	certificate := peerCertificate(ctx)
	if certificate == nil {
		return nil, false
	}
	return peertls.NamesOf(certificate), true
}

// PeerNode returns the name of the node whose certificate a call's peer on another machine has shown; empty if it is
// not that of a node, see peertls.NodeOf.
func PeerNode(ctx context.Context) string {
	certificate := peerCertificate(ctx)
	if certificate == nil {
		return ""
	}
	return peertls.NodeOf(certificate)
}

// peerCertificate returns the certificate of a call's peer on another machine; nil for a peer on this machine.
func peerCertificate(ctx context.Context) *x509.Certificate {
	p, known := peer.FromContext(ctx)
	if !known {
		return nil
	}
	info, known := p.AuthInfo.(credentials.TLSInfo)
	if !known {
		return nil
	}
	return info.State.PeerCertificates[0]
}

// peerInfo holds the facts about the peer that handlers can read.
type peerInfo struct {
	credentials.CommonAuthInfo

	uid int
}

// AuthType implements credentials.AuthInfo.
func (peerInfo) AuthType() string { return "unix socket" }

// peerCredentials records the credentials of peers on unix sockets, without a change of the protocol, and has TLS for
// connections of the network.
type peerCredentials struct {
	credentials.TransportCredentials

	// network has the credentials of connections that are not of unix sockets; nil if there are none.
	network credentials.TransportCredentials
}

func newPeerCredentials(network credentials.TransportCredentials) credentials.TransportCredentials {
	return peerCredentials{insecure.NewCredentials(), network}
}

// ServerHandshake implements credentials.TransportCredentials. A peer whose credentials cannot be read has none.
func (c peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	socket, ok := conn.(*net.UnixConn)
	switch {
	case !ok && c.network == nil:
		return nil, nil, fmt.Errorf("%s: connections of the network need TLS", conn.LocalAddr())
	case !ok:
		return c.network.ServerHandshake(conn)
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
	return peerCredentials{c.TransportCredentials.Clone(), c.network}
}
