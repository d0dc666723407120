// Package apiclient connects a service to the API server of a cluster. It turns a kubeconfig into a client, or returns
// an error that names the wrong field and file. The error never quotes the value, because it may be a credential.
//
// A service creates one client for each kind of work, with its own limits, so that a client that is busy with pods does
// not delay a heartbeat.
package apiclient

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/statedir"
)

// Config holds the address, the identity and the limits of a client.
type Config struct {
	// Kubeconfig is the path of the kubeconfig file.
	Kubeconfig string
	// Await allows the file to be missing at first. Until it exists, requests fail with [ErrNotJoined].
	Await bool
	// Service is the name of the client. The API server logs it with the version, as the user agent
	// "quartet-SERVICE/VERSION".
	Service nodeconfig.Service
	// QPS is the sustained rate of requests per second, and Burst the number of requests allowed at once above it. As for
	// the kubelet, a QPS of 0 means client-go's default of 5, and a Burst of 0 means its default of 10. A QPS below 0
	// means no limit.
	QPS, Burst int32
	// Timeout bounds each request, and therefore the lifetime of a watch. 0 means that only the request's own context
	// bounds it.
	Timeout time.Duration
	// ContentType is the encoding of requests: protobuf or JSON. Responses in JSON are accepted in both cases, because
	// some resources of an API server have no other form.
	ContentType string
}

// ConfigOf returns the part of a service's configuration that concerns the API server.
func ConfigOf(service nodeconfig.Service, cfg nodeconfig.Config) Config {
	k := cfg.Kubelet
	out := Config{
		Kubeconfig:  cfg.Kubeconfig,
		Await:       cfg.AwaitKubeconfig,
		Service:     service,
		Burst:       k.KubeAPIBurst,
		ContentType: k.ContentType,
	}
	if k.KubeAPIQPS != nil {
		out.QPS = *k.KubeAPIQPS
	}
	return out
}

// Client talks to an API server through client-go's REST clients, one for each group version in use. They share
// connections and limits. A client-go clientset is not used because it contains every API group: it doubles the size of
// a service, and costs memory even on a node without an API server.
type Client struct {
	// Core is for core/v1: pods, nodes, config maps, secrets, and service account tokens, which are authentication/v1
	// TokenRequests.
	Core rest.Interface
	// Certificates is for certificates/v1: certificate signing requests, pod certificate requests and cluster trust
	// bundles.
	Certificates rest.Interface

	// Node is for node/v1: runtime classes.
	Node rest.Interface
	// Coordination is for coordination/v1: leases.
	Coordination rest.Interface
	// Storage is for storage/v1: CSI drivers and the attachments of volumes.
	Storage rest.Interface
	// Authentication is for authentication/v1, which identifies the user of a token. Authorization is for
	// authorization/v1, which decides whether a user may do something.
	Authentication, Authorization rest.Interface

	config *rest.Config
	// awaited is the transport of a client whose kubeconfig could not be read at its start; nil for others.
	awaited     *awaited
	connections *http.Client
	dialer      *connrotation.Dialer
	onAnswer    atomic.Pointer[func(Exchange)]
	counts      atomic.Pointer[Metrics]
}

// New returns a client. It sends no request, so the API server need not be reachable yet. It fails where [RESTConfig]
// fails, except on a failing disk, see [statedir.OnFailingDisk]: then requests fail until the file can be read.
func New(cfg Config) (*Client, error) {
	c := &Client{dialer: newDialer()}
	config, err := c.connect(cfg)
	if err != nil {
		return nil, err
	}
	traced := newTraced(c.connections.Transport)
	c.connections.Transport = counted{next: dated{next: traced, onAnswer: &c.onAnswer}, client: c}
	config.RateLimiter = limiter(config)
	c.config = config
	c.Core, err = c.group(config, v1.SchemeGroupVersion, v1.AddToScheme, authenticationv1.AddToScheme)
	if err == nil {
		c.Certificates, err = c.group(config, certificatesv1.SchemeGroupVersion, certificatesv1.AddToScheme)
	}
	if err == nil {
		c.Node, err = c.group(config, nodev1.SchemeGroupVersion, nodev1.AddToScheme)
	}
	if err == nil {
		c.Coordination, err = c.group(config, coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme)
	}
	if err == nil {
		c.Storage, err = c.group(config, storagev1.SchemeGroupVersion, storagev1.AddToScheme)
	}
	if err == nil {
		c.Authentication, err = c.group(config, authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme)
	}
	if err == nil {
		c.Authorization, err = c.group(config, authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: making a client of it: %w", cfg.Kubeconfig, err)
	}
	return c, nil
}

// Server returns the URL of the API server for people. It is the path of the kubeconfig as long as no request could
// read that file.
func (c *Client) Server() string {
	if c.awaited == nil {
		core := c.Core.Get().URL()
		prefix := strings.TrimSuffix(strings.TrimSuffix(core.Path, "/"), "/api/v1")
		return (&url.URL{Scheme: core.Scheme, Host: core.Host, Path: prefix}).String()
	}
	connection := c.awaited.open.Load()
	if connection == nil {
		return c.awaited.cfg.Kubeconfig
	}
	at := connection.server
	return (&url.URL{Scheme: at.Scheme, Host: at.Host, Path: strings.TrimSuffix(at.Path, "/")}).String()
}

// Group returns the client of a group version that only some services need, for example storage/v1. It is not a field
// of Client, because every service would then contain the types of the group. Each function in types registers types
// that its requests carry.
func (c *Client) Group(version schema.GroupVersion, types ...func(*runtime.Scheme) error) (rest.Interface, error) {
	return c.group(c.config, version, types...)
}

// connect sets up the connections that all requests of the client share, and returns their REST configuration.
func (c *Client) connect(cfg Config) (*rest.Config, error) {
	var config *rest.Config
	isMissing := missing(cfg)
	var err error
	if !isMissing {
		config, err = RESTConfig(cfg)
	}
	if isMissing || statedir.OnFailingDisk(err) {
		c.awaited = &awaited{cfg: cfg, dialer: c.dialer}
		c.connections = &http.Client{Timeout: cfg.Timeout, Transport: c.awaited}
		return withClientSettings(&rest.Config{Host: nowhere}, cfg), nil
	}
	if err != nil {
		return nil, err
	}
	config.Dial = c.dialer.DialContext
	if c.connections, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("%s: making a client of it: %w", cfg.Kubeconfig, err)
	}
	return config, nil
}

// group returns the REST client for a group version. Each function in types registers types that its requests carry.
func (c *Client) group(
	config *rest.Config,
	version schema.GroupVersion,
	types ...func(*runtime.Scheme) error,
) (rest.Interface, error) {
	known := runtime.NewScheme()
	for _, add := range types {
		if err := add(known); err != nil {
			return nil, err
		}
	}
	to := rest.CopyConfig(config)
	to.APIPath, to.GroupVersion = "/apis", &version
	if version.Group == v1.GroupName {
		to.APIPath = "/api"
	}
	to.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	return rest.RESTClientForConfigAndClient(to, c.connections)
}

// limiter returns the rate limiter that all group versions share, or nil for no limit. Unset values default as in
// client-go.
func limiter(config *rest.Config) flowcontrol.RateLimiter {
	qps, burst := config.QPS, config.Burst
	if qps < 0 {
		return nil
	}
	if qps == 0 {
		qps = rest.DefaultQPS
	}
	if burst == 0 {
		burst = rest.DefaultBurst
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// Close closes the connections. Call it after every user of the client has ended.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.connections.Transport) }

// RESTConfig reads the kubeconfig and the certificates and keys that it names. It fails if they cannot be read or do
// not match, and for a server without TLS on another machine. The client rereads the files that the kubeconfig names
// when they change, so that a certificate can be replaced. It does not reread the kubeconfig itself.
func RESTConfig(cfg Config) (*rest.Config, error) {
	content, err := load(cfg.Kubeconfig)
	if err != nil {
		return nil, &nodeconfig.WrongError{Err: err}
	}
	config, err := clientcmd.NewDefaultClientConfig(*content, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, &nodeconfig.WrongError{Err: fmt.Errorf("%s: %w", cfg.Kubeconfig, err)}
	}
	return withClientSettings(config, cfg), nil
}

// withClientSettings adds the encoding, the user agent and the timeout of requests.
func withClientSettings(config *rest.Config, cfg Config) *rest.Config {
	config.UserAgent = fmt.Sprintf("quartet-%s/%s", cfg.Service, buildinfo.Version())
	config.ContentType, config.AcceptContentTypes = cfg.ContentType, cfg.ContentType
	if cfg.ContentType != runtime.ContentTypeJSON {
		config.AcceptContentTypes += "," + runtime.ContentTypeJSON
	}
	config.QPS, config.Burst, config.Timeout = float32(cfg.QPS), int(cfg.Burst), cfg.Timeout
	return config
}
