package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	internalapi "k8s.io/cri-api/pkg/apis"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/certificates"
	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/apiauth"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/kubeletapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/servingcert"
)

const (
	// machineLogs is what the HTTP API serves as /logs/.
	machineLogs = "/var/log"
	// askNodeTimeout bounds the question for the Node, which the names of a serving certificate are of.
	askNodeTimeout = 5 * time.Second
)

// nodeAPI is the authenticated HTTP API.
type nodeAPI struct {
	listener net.Listener
	tls      *tls.Config
	guard    *apiauth.Guard
	// roots gives those whose client certificates are taken; nil where none are.
	roots func() (*x509.CertPool, bool)
	// reviews asks an API server who somebody is and what they may; nil where nobody is asked.
	reviews *apiclient.Client
	// keep keeps the certificate valid until its context ends.
	keep   func(ctx context.Context)
	logger *slog.Logger
	// started is when the process was, but for some moments.
	started time.Time
}

// nodeAPIOf makes the authenticated API and listens for it; nil when the node has none. Process is what calls live under that one
// makes for several.
func nodeAPIOf(process context.Context, e *engine, askNode func(context.Context) (*v1.Node, error)) (*nodeAPI, error) {
	if why := e.cfg.WhyNoAPI(); why != "" {
		e.logger.Info("the authenticated HTTP API is not served", "port", e.cfg.Kubelet.Port, telemetry.KeyReason, why)
		return nil, nil
	}
	if at := e.cfg.UnauthenticatedAPI(); at != "" {
		e.logger.Warn("everybody who reaches the HTTP API may run what they like in the containers of this node; leave out "+nodeconfig.AllowUnauthenticatedAPIArg+
			" and set authorization.mode Webhook, or authentication.anonymous.enabled false", "address", at)
	}
	k := &e.cfg.Kubelet
	profileContention(k)
	a := &nodeAPI{logger: e.logger, started: time.Now()}
	a.roots = a.clientCAs(k)
	minVersion, err := nodeconfig.TLSVersion(k.TLSMinVersion)
	if err != nil {
		return nil, err
	}
	suites, err := nodeconfig.CipherSuites(k.TLSCipherSuites)
	if err != nil {
		return nil, err
	}
	if err := a.guarded(process, e); err != nil {
		return nil, err
	}
	current, err := a.certificate(process, e, askNode)
	if err != nil {
		return nil, a.closed(err)
	}
	a.tls = servingcert.Config(minVersion, suites, current, a.roots)
	if a.tls.CurvePreferences, err = nodeconfig.Curves(k.TLSCurvePreferences); err != nil {
		return nil, a.closed(err)
	}
	if a.listener, err = kubeletapi.Listen(process, e.cfg.Sockets, e.cfg.APISocket(), e.logger); err != nil {
		return nil, a.closed(err)
	}
	return a, nil
}

// closed closes what an API has that is not served, and returns why.
func (a *nodeAPI) closed(why error) error {
	if a.reviews != nil {
		a.reviews.Close()
	}
	return why
}

// guarded makes what lets in who may.
func (a *nodeAPI) guarded(process context.Context, e *engine) (err error) {
	k := &e.cfg.Kubelet
	cfg := apiauth.Config{
		NodeName: e.cfg.NodeName, ClientCAs: a.roots, Anonymous: *k.Authentication.Anonymous.Enabled, Clock: clock.RealClock{}, Logger: e.logger,
		TokenTTL:   k.Authentication.Webhook.CacheTTL.Duration,
		AllowedTTL: k.Authorization.Webhook.CacheAuthorizedTTL.Duration, DeniedTTL: k.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
	}
	if e.cfg.Kubeconfig != "" {
		// A client of its own: who asks does not wait behind the status of pods.
		if a.reviews, err = apiclient.New(apiclient.ConfigOf(nodeconfig.SyncLoop, e.cfg)); err != nil {
			return err
		}
		a.reviews.CountIn(e.requests)
		if *k.Authentication.Webhook.Enabled {
			cfg.Tokens = a.reviews.Authentication
		}
		if k.Authorization.Mode == kubeletconfigv1beta1.KubeletAuthorizationModeWebhook {
			cfg.Access = a.reviews.Authorization
		}
	}
	a.guard = apiauth.New(process, cfg)
	return nil
}

// clientCAs returns what gives those whose client certificates are taken; nil where none are.
func (a *nodeAPI) clientCAs(k *kubeletconfigv1beta1.KubeletConfiguration) func() (*x509.CertPool, bool) {
	file := k.Authentication.X509.ClientCAFile
	if file == "" {
		return nil
	}
	files := servingcert.ClientCAs(file)
	if _, _, err := files.Get(); err != nil {
		a.logger.Warn("no client certificate is taken by the HTTP API before this file can be read", telemetry.KeyFile, file, telemetry.KeyError, err)
	}
	return func() (*x509.CertPool, bool) {
		pool, ok, _ := files.Get() // who asks is told that it cannot be read
		return pool, ok
	}
}

// certificate returns what gives the certificate that is shown: that of the files, one that the cluster signs, or one of its own.
func (a *nodeAPI) certificate(process context.Context, e *engine, askNode func(context.Context) (*v1.Node, error)) (func() (*tls.Certificate, error), error) {
	k, pki := &e.cfg.Kubelet, e.cfg.CertDir
	a.keep = func(context.Context) {}
	if k.ServerTLSBootstrap && k.TLSCertFile == "" {
		if err := statedir.MakeDir(pki); err != nil {
			return nil, err
		}
		manager := certificates.New(certificates.Config{
			Requester: certificates.Requester{
				API:  func() (rest.Interface, error) { return a.reviews.Certificates, nil },
				Kind: certificates.Serving(), Clock: clock.RealClock{},
				Store: certificates.Store{Dir: pki, Name: "kubelet-server", Mode: 0o600},
			},
			Template: func() *x509.CertificateRequest { return servingTemplate(process, e.cfg.NodeName, askNode) },
			Random:   rand.Float64, Logger: a.logger,
		})
		a.keep = manager.Run
		servingcert.Expose(e.metrics.Registry, manager.Expires, manager.Failures)
		return func() (*tls.Certificate, error) {
			if current := manager.Current(); current != nil {
				return current, nil
			}
			return nil, fmt.Errorf("there is no serving certificate yet: %s", manager.Trouble())
		}, nil
	}
	certificate, key := k.TLSCertFile, k.TLSPrivateKeyFile
	if certificate == "" {
		own := servingcert.SelfSigned{Dir: pki, Name: e.cfg.NodeName, Addresses: addressesOf(e.cfg), Clock: clock.RealClock{}}
		var err error
		if certificate, key, err = own.Ensure(); err != nil {
			return nil, err
		}
		a.keep = func(ctx context.Context) {
			own.Keep(ctx, func(err error) {
				a.logger.Warn("the certificate of the HTTP API is not replaced", telemetry.KeyFile, certificate, telemetry.KeyError, err)
			})
		}
	}
	files := servingcert.Files(certificate, key)
	if _, _, err := files.Get(); err != nil {
		a.logger.Warn("the HTTP API answers nobody before its certificate can be read", telemetry.KeyFile, certificate, telemetry.KeyError, err)
	}
	return func() (*tls.Certificate, error) {
		current, ok, err := files.Get()
		if ok {
			return current, nil
		}
		return nil, err
	}, nil
}

// addressesOf are those of a node that are known without a cluster.
func addressesOf(cfg nodeconfig.Config) []net.IP {
	addresses := []net.IP{net.IPv4(127, 0, 0, 1)}
	for _, text := range guessedAddresses(cfg) {
		if ip := net.ParseIP(text); ip != nil {
			addresses = append(addresses, ip)
		}
	}
	return addresses
}

// servingTemplate says what a serving certificate is to be of: the Node, at its addresses; nil while those are not known.
func servingTemplate(process context.Context, name string, askNode func(context.Context) (*v1.Node, error)) *x509.CertificateRequest {
	ctx, cancel := context.WithTimeout(process, askNodeTimeout)
	defer cancel()
	node, err := askNode(ctx)
	if err != nil {
		return nil
	}
	return requestOf(name, node.Status.Addresses)
}

// requestOf makes the request of a serving certificate; nil without an IP address, for which no signer would sign it.
func requestOf(name string, addresses []v1.NodeAddress) *x509.CertificateRequest {
	request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}}
	seen := map[string]bool{}
	for _, address := range addresses {
		if address.Address == "" || seen[address.Address] {
			continue
		}
		seen[address.Address] = true
		if ip := net.ParseIP(address.Address); ip != nil {
			request.IPAddresses = append(request.IPAddresses, ip)
		} else if address.Type != v1.NodeInternalIP && address.Type != v1.NodeExternalIP {
			request.DNSNames = append(request.DNSNames, address.Address)
		}
	}
	if len(request.IPAddresses) == 0 {
		return nil
	}
	return request
}

// awaitTurn returns when the loop turns, or when ctx ends. The HTTP API is served from then on, so that no health check fails because
// the process is starting; connections wait.
func (e *engine) awaitTurn(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-e.loop.Begun():
	}
}

// awaitReady returns when the pods are known and the runtime has answered, or when ctx ends.
func (e *engine) awaitReady(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-e.store.Known():
		_, _ = e.runtime.Runtime(ctx) // the request that needs the runtime reports the error
	}
}

// run serves the API of e until ctx ends.
func (a *nodeAPI) run(ctx context.Context, e *engine, common kubeletapi.Config) error {
	if a == nil {
		return nil
	}
	api := kubeletapi.Node(kubeletapi.NodeConfig{
		Config: common, Guard: a.guard.Protect, Kubelet: &e.cfg.Kubelet, LogDir: machineLogs, Checkpoints: filepath.Join(e.cfg.RootDir, "checkpoints"),
		Runtime: func() (internalapi.RuntimeService, error) { return e.runtime.Runtime(atOnce(ctx)) }, Clock: clock.RealClock{},
		Who:     func(r *http.Request) string { return apiauth.UserOf(r.Context()).Name },
		Tracer:  e.tracer,
		Process: kubeletapi.Process{Flags: e.cfg.Flags, Started: a.started, Version: buildinfo.Version(), Kubernetes: buildinfo.Kubernetes()},
	})
	defer api.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		a.keep(ctx)
		return nil
	})
	group.Go(func() error {
		a.logger.Info("serving the authenticated HTTP API", "address", a.listener.Addr().String())
		return httpserve.Streams(ctx, a.listener, a.tls, api, a.logger)
	})
	err := group.Wait()
	if a.reviews != nil {
		a.reviews.Close()
	}
	return err
}
