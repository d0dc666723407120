// Package apiclient is the way from a service to the API server of a cluster: from a kubeconfig to a client, or to an
// error that says which field of which file is wrong and never what stands in it, for that may be a credential.
//
// Services with work of different kinds make a client for each, with the limits that it may have: one that is busy with
// pods must not keep a heartbeat waiting.
package apiclient

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
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
)

// Config says how to reach an API server, and as who.
type Config struct {
	// Kubeconfig is the path of the file.
	Kubeconfig string
	// Await says that the file need not be there yet: until it is, requests fail with [ErrNotJoined].
	Await bool
	// Service is who asks. The API server logs it with the version, as the user agent "quartet-SERVICE/VERSION".
	Service nodeconfig.Service
	// QPS is how many requests a second are made in the long run, and Burst how many at once before that. As for the
	// kubelet a QPS of 0 is client-go's own default of 5, and a Burst of 0 its 10. A QPS below 0 is no limit.
	QPS, Burst int32
	// Timeout bounds each request, and so the life of a watch; 0 is no limit but the request's own.
	Timeout time.Duration
	// ContentType is what requests are encoded in: protobuf or JSON. Answers in JSON are understood in both cases, since
	// some of an API server's have no other form.
	ContentType string
}

// ConfigOf takes what is said of the API server out of the configuration of a service.
func ConfigOf(service nodeconfig.Service, cfg nodeconfig.Config) Config {
	k := cfg.Kubelet
	out := Config{Kubeconfig: cfg.Kubeconfig, Await: cfg.AwaitKubeconfig, Service: service, Burst: k.KubeAPIBurst, ContentType: k.ContentType}
	if k.KubeAPIQPS != nil {
		out.QPS = *k.KubeAPIQPS
	}
	return out
}

// Client reaches an API server by what it has of client-go's REST clients, one for each group version that is used. They share
// connections and limits. A clientset of client-go would have all groups that there are: they double a service's size, and cost
// memory where there is no API server at all.
type Client struct {
	// Core is for core/v1: pods and nodes, config maps and secrets, and tokens of service accounts, which are an
	// authentication/v1 TokenRequest each.
	Core rest.Interface
	// Certificates is for certificates/v1: requests for certificates, of pods and of others, and bundles of roots.
	Certificates rest.Interface

	// Node is for node/v1: runtime classes.
	Node rest.Interface
	// Coordination is for coordination/v1: leases.
	Coordination rest.Interface
	// Authentication is for authentication/v1: who a token is of. Authorization is for authorization/v1: whether somebody may do
	// something.
	Authentication, Authorization rest.Interface

	connections *http.Client
	dialer      *connrotation.Dialer
	told        atomic.Pointer[func(Exchange)]
	counts      atomic.Pointer[Metrics]
}

// New returns a client. Nothing is asked of the API server yet, so it need not be there; what fails is [RESTConfig].
func New(cfg Config) (*Client, error) {
	c := &Client{dialer: newDialer()}
	way, err := c.connect(cfg)
	if err != nil {
		return nil, err
	}
	c.connections.Transport = counted{next: dated{next: newTraced(c.connections.Transport), told: &c.told}, client: c}
	way.RateLimiter = limiter(way)
	c.Core, err = c.group(way, v1.SchemeGroupVersion, v1.AddToScheme, authenticationv1.AddToScheme)
	if err == nil {
		c.Certificates, err = c.group(way, certificatesv1.SchemeGroupVersion, certificatesv1.AddToScheme)
	}
	if err == nil {
		c.Node, err = c.group(way, nodev1.SchemeGroupVersion, nodev1.AddToScheme)
	}
	if err == nil {
		c.Coordination, err = c.group(way, coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme)
	}
	if err == nil {
		c.Authentication, err = c.group(way, authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme)
	}
	if err == nil {
		c.Authorization, err = c.group(way, authorizationv1.SchemeGroupVersion, authorizationv1.AddToScheme)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: making a client of it: %w", cfg.Kubeconfig, err)
	}
	return c, nil
}

// connect makes the connections that all of the client's requests share, and returns how they are made.
func (c *Client) connect(cfg Config) (*rest.Config, error) {
	if missing(cfg) {
		way := asking(&rest.Config{Host: nowhere}, cfg)
		c.connections = &http.Client{Timeout: cfg.Timeout, Transport: &awaited{cfg: cfg, dialer: c.dialer}}
		return way, nil
	}
	way, err := RESTConfig(cfg)
	if err != nil {
		return nil, err
	}
	way.Dial = c.dialer.DialContext
	if c.connections, err = rest.HTTPClientFor(way); err != nil {
		return nil, fmt.Errorf("%s: making a client of it: %w", cfg.Kubeconfig, err)
	}
	return way, nil
}

// group returns the REST client for a group version. Its types, and others that requests of it carry, each of types makes known.
func (c *Client) group(way *rest.Config, version schema.GroupVersion, types ...func(*runtime.Scheme) error) (rest.Interface, error) {
	known := runtime.NewScheme()
	for _, add := range types {
		if err := add(known); err != nil {
			return nil, err
		}
	}
	to := rest.CopyConfig(way)
	to.APIPath, to.GroupVersion = "/apis", &version
	if version.Group == v1.GroupName {
		to.APIPath = "/api"
	}
	to.NegotiatedSerializer = serializer.NewCodecFactory(known).WithoutConversion()
	return rest.RESTClientForConfigAndClient(to, c.connections)
}

// limiter returns what holds back the requests of all group versions together; nil for nothing. What is not set is
// client-go's default.
func limiter(way *rest.Config) flowcontrol.RateLimiter {
	qps, burst := way.QPS, way.Burst
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

// Close closes the connections, when everything that used the client has ended.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.connections.Transport) }

// RESTConfig reads the kubeconfig and the certificates and keys that it names. It fails when they cannot be read or do
// not fit together, and for a server without TLS that is not on this machine. Files that it names are read again by the
// client when they change, so that a certificate can be replaced; the kubeconfig itself is not.
func RESTConfig(cfg Config) (*rest.Config, error) {
	content, err := load(cfg.Kubeconfig)
	if err != nil {
		return nil, &nodeconfig.WrongError{Err: err}
	}
	way, err := clientcmd.NewDefaultClientConfig(*content, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, &nodeconfig.WrongError{Err: fmt.Errorf("%s: %w", cfg.Kubeconfig, err)}
	}
	return asking(way, cfg), nil
}

// asking adds how requests are made.
func asking(way *rest.Config, cfg Config) *rest.Config {
	way.UserAgent = fmt.Sprintf("quartet-%s/%s", cfg.Service, buildinfo.Version())
	way.ContentType, way.AcceptContentTypes = cfg.ContentType, cfg.ContentType
	if cfg.ContentType != runtime.ContentTypeJSON {
		way.AcceptContentTypes += "," + runtime.ContentTypeJSON
	}
	way.QPS, way.Burst, way.Timeout = float32(cfg.QPS), int(cfg.Burst), cfg.Timeout
	return way
}
