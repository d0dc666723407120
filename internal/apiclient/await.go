package apiclient

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/connrotation"

	"github.com/quartet-node/quartet/internal/statedir"
)

// nowhere is the server address of a client whose kubeconfig does not exist yet. No request is ever sent to it.
const nowhere = "https://kubeconfig.invalid"

// ErrNotJoined is the error of requests while the kubeconfig does not exist yet.
var ErrNotJoined = errors.New(
	"the node has not joined its cluster yet: nodestatus writes the kubeconfig when it has, and 'quartet doctor' says what it waits for",
)

// awaited is the transport of a client whose kubeconfig does not exist yet, or is on a disk that does not give it. Each
// request reads the file until it is there. An invalid file fails the request with the reason.
type awaited struct {
	cfg Config
	// dialer opens the connections.
	dialer *connrotation.Dialer
	open   atomic.Pointer[opened]
}

// opened is the transport that results from the kubeconfig.
type opened struct {
	server  *url.URL
	through http.RoundTripper
}

// missing reports whether an awaited kubeconfig does not exist yet.
func missing(cfg Config) bool {
	if !cfg.Await {
		return false
	}
	_, err := os.Stat(cfg.Kubeconfig)
	return errors.Is(err, fs.ErrNotExist)
}

// RoundTrip implements http.RoundTripper.
func (a *awaited) RoundTrip(r *http.Request) (*http.Response, error) {
	connection, err := a.connection()
	if err != nil {
		if r.Body != nil {
			err = errors.Join(err, r.Body.Close())
		}
		return nil, err
	}
	to := r.Clone(r.Context())
	to.Host = ""
	to.URL.Scheme, to.URL.Host, to.URL.Path = connection.server.Scheme, connection.server.Host, path.Join(
		"/",
		connection.server.Path,
		r.URL.Path,
	)
	return connection.through.RoundTrip(to)
}

func (a *awaited) connection() (*opened, error) {
	if connection := a.open.Load(); connection != nil {
		return connection, nil
	}
	if missing(a.cfg) {
		return nil, fmt.Errorf("%s: %w", a.cfg.Kubeconfig, ErrNotJoined)
	}
	config, err := RESTConfig(a.cfg)
	if statedir.OnFailingDisk(err) {
		return nil, fmt.Errorf("%w: it is read again with each request; check its disk", err)
	}
	if err != nil {
		return nil, err
	}
	config.Dial = a.dialer.DialContext
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.cfg.Kubeconfig, err)
	}
	through, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.cfg.Kubeconfig, err)
	}
	a.open.CompareAndSwap(nil, &opened{server: server, through: through})
	return a.open.Load(), nil
}

// CloseIdleConnections closes connections that are not in use.
func (a *awaited) CloseIdleConnections() {
	if connection := a.open.Load(); connection != nil {
		utilnet.CloseIdleConnectionsFor(connection.through)
	}
}
