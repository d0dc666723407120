package syncloop

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/buildinfo"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/pemfiles"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/apiauth"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/kubeletapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/servingcert"
)

// machineLogs is the directory that the HTTP API serves as /logs/.
const machineLogs = "/var/log"

// addNodeAPI listens for the authenticated HTTP API and adds it, unless the configuration turns it off. Calls that
// several requests share are made under ctx, the process's context.
func addNodeAPI(
	ctx context.Context, h *host, askNode func(context.Context) (*v1.Node, error), common kubeletapi.Config,
	begun <-chan struct{}, parts *components.Group,
) error {
	kubelet := &h.cfg.Kubelet
	if why := h.cfg.WhyNoAPI(); why != "" {
		h.logger.Info("the authenticated HTTP API is not served", "port", kubelet.Port, telemetry.KeyReason, why)
		return nil
	}
	if at := h.cfg.UnauthenticatedAPI(); at != "" {
		h.logger.Warn("everybody who reaches the HTTP API may run commands in the containers of this node; remove "+
			nodeconfig.AllowUnauthenticatedAPIArg+
			" and set authorization.mode: Webhook, or authentication.anonymous.enabled: false", "address", at)
	}
	profileContention(kubelet)
	started := time.Now() // the approximate start of the process
	roots := clientCAs(h)
	to, err := newReviews(h, parts)
	if err != nil {
		return err
	}
	certificate := addServingCertificate(ctx, h, askNode, to.certificates, parts)
	watchServing(h, certificate, parts)
	serverTLS, err := newServerTLS(kubelet, certificate, roots)
	if err != nil {
		return err
	}
	listener, err := kubeletapi.Listen(ctx, h.cfg.Sockets, h.cfg.APISocket(), h.logger)
	if err != nil {
		return err
	}
	config := kubeletapi.NodeConfig{
		Config: common, Guard: newGuard(ctx, h, roots, to).Protect, Kubelet: kubelet, LogDir: machineLogs,
		Checkpoints: filepath.Join(h.cfg.RootDir, "checkpoints"), Runtime: h.runtimeNow(ctx), Clock: clock.RealClock{},
		UserName: func(r *http.Request) string { return apiauth.UserOf(r.Context()).Name },
		Tracer:   h.tracer,
		Process: kubeletapi.Process{
			Flags: h.cfg.Flags, Started: started, Version: buildinfo.Version(), Kubernetes: buildinfo.Kubernetes(),
		},
	}
	parts.Run("authenticated API", func(ctx context.Context) error {
		await(ctx, begun)
		api := kubeletapi.Node(config)
		defer api.Close()
		h.logger.Info("serving the authenticated HTTP API", "address", listener.Addr().String())
		return httpserve.Streams(ctx, listener, httpserve.StreamLimits(), serverTLS, api, h.logger)
	})
	return nil
}

// newServerTLS returns the TLS configuration of the HTTP API.
func newServerTLS(
	kubelet *kubeletconfigv1beta1.KubeletConfiguration, certificate func() (*tls.Certificate, error),
	roots func() (*x509.CertPool, bool),
) (*tls.Config, error) {
	minVersion, err := nodeconfig.TLSVersion(kubelet.TLSMinVersion)
	if err != nil {
		return nil, err
	}
	suites, err := nodeconfig.CipherSuites(kubelet.TLSCipherSuites)
	if err != nil {
		return nil, err
	}
	curves, err := nodeconfig.Curves(kubelet.TLSCurvePreferences)
	if err != nil {
		return nil, err
	}
	config := servingcert.Config(minVersion, suites, certificate, roots)
	config.CurvePreferences = curves
	return config, nil
}

// reviews are the clients of the API server for authentication, authorization and the serving certificate. A client is
// nil if it is not used.
type reviews struct {
	tokens, access, certificates rest.Interface
}

// newReviews returns the clients that the configuration requires. They share rate limits of their own, so that
// authentication does not wait behind status updates of pods.
func newReviews(h *host, parts *components.Group) (reviews, error) {
	if h.cfg.Kubeconfig == "" {
		return reviews{}, nil
	}
	client, err := newAPIClient(h, parts)
	if err != nil {
		return reviews{}, err
	}
	to := reviews{certificates: client.Certificates}
	if *h.cfg.Kubelet.Authentication.Webhook.Enabled {
		to.tokens = client.Authentication
	}
	if h.cfg.Kubelet.Authorization.Mode == kubeletconfigv1beta1.KubeletAuthorizationModeWebhook {
		to.access = client.Authorization
	}
	return to, nil
}

// newGuard returns the guard that authenticates and authorizes requests.
func newGuard(ctx context.Context, h *host, roots func() (*x509.CertPool, bool), to reviews) *apiauth.Guard {
	kubelet := &h.cfg.Kubelet
	return apiauth.New(ctx, apiauth.Config{
		NodeName: h.cfg.NodeName, ClientCAs: roots, Anonymous: *kubelet.Authentication.Anonymous.Enabled,
		Clock: clock.RealClock{}, Logger: h.logger,
		TokenTTL:   kubelet.Authentication.Webhook.CacheTTL.Duration,
		AllowedTTL: kubelet.Authorization.Webhook.CacheAuthorizedTTL.Duration,
		DeniedTTL:  kubelet.Authorization.Webhook.CacheUnauthorizedTTL.Duration,
		Tokens:     to.tokens, Access: to.access,
	})
}

// clientCAs returns a function that returns the certificate authorities of accepted client certificates. It returns nil
// if no client certificate is accepted.
func clientCAs(h *host) func() (*x509.CertPool, bool) {
	file := h.cfg.Kubelet.Authentication.X509.ClientCAFile
	if file == "" {
		return nil
	}
	files := pemfiles.Authorities(file)
	if _, _, err := files.Get(); err != nil {
		h.logger.Warn("the HTTP API accepts no client certificate until this file can be read",
			telemetry.KeyFile, file, telemetry.KeyError, err)
	}
	return func() (*x509.CertPool, bool) {
		pool, ok, _ := files.Get() // the guard rejects the request if the file cannot be read
		return pool, ok
	}
}
