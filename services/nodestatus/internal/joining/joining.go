// Package joining lets a node join its cluster and stay in it. It requests the node's certificate with a bootstrap
// kubeconfig, which permits nothing else, writes the kubeconfig for all processes of the node, and renews the
// certificate before it expires. See "TLS bootstrapping" in the Kubernetes documentation.
package joining

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/certificates"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// fileName is the prefix of the certificate's files, as in the kubelet.
	fileName = "kubelet-client"
	// dirMode and fileMode grant read access to the group of the process, because the node's other processes may be other
	// users.
	dirMode, fileMode = 0o750, 0o640
	// The names of the cluster, the user and the context in the kubeconfig that is written, as in the kubelet.
	cluster, user, entry = "default-cluster", "default-auth", "default-context"
	// healthName is the name in the health.
	healthName = "joining"
	// lookAgain is the interval of updates of the health.
	lookAgain = 10 * time.Second
)

// Config holds the parameters of a Joiner.
type Config struct {
	// NodeName is the node's name, and the subject of its certificate.
	NodeName string
	// Bootstrap is the kubeconfig for requests without a valid certificate; empty for a node that has one.
	Bootstrap string
	// Kubeconfig is the file that is written for all processes.
	Kubeconfig string
	// Dir is the directory of the certificate.
	Dir string
	// Rotate enables renewal: rotateCertificates of the file.
	Rotate bool
	// Connect creates a client for a kubeconfig.
	Connect func(kubeconfig string) (*apiclient.Client, error)
	// Random is the Random of certificates.Config.
	Random func() float64
	Health *rpc.Health
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Joiner joins the cluster. Create it with New.
type Joiner struct {
	cfg     Config
	store   certificates.Store
	manager *certificates.Manager
	// clients caches one client for each kubeconfig.
	clients map[string]*apiclient.Client
	// writes is true if the joiner writes the kubeconfig, because a bootstrap kubeconfig is configured, whether it exists
	// or not.
	writes bool
}

// New returns a joiner, or nil if there is nothing to do because the node has a kubeconfig and renewal is off. It fails
// if the directory of the certificate is not writable.
func New(cfg Config) (*Joiner, error) {
	store := certificates.Store{Dir: cfg.Dir, Name: fileName, Mode: fileMode}
	named := cfg.Bootstrap != ""
	if named && hasJoined(cfg, store) {
		cfg.Bootstrap = ""
	}
	if cfg.Bootstrap == "" {
		if !cfg.Rotate {
			return nil, nil
		}
		if _, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: cfg.Kubeconfig}); statedir.OnFailingDisk(err) {
			cfg.Logger.Error("rotateCertificates: the certificate of the kubeconfig is not renewed, because its file cannot be read: check its disk, and restart nodestatus",
				telemetry.KeyFile, cfg.Kubeconfig, telemetry.KeyError, err)
			return nil, nil
		}
		kept, file := storeOf(cfg.Kubeconfig)
		if kept == nil && file == "" {
			var err error
			if kept, err = adopt(cfg, store); err != nil {
				return nil, err
			}
		}
		if kept == nil {
			cfg.Logger.Warn("rotateCertificates: the certificate of the kubeconfig is not renewed: client-certificate and client-key must both name one file NAME-current.pem that nodestatus may replace",
				telemetry.KeyFile, cfg.Kubeconfig, "client-certificate", file)
			return nil, nil
		}
		store = *kept
	} else if err := os.MkdirAll(cfg.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("making the directory of the node's certificate: %w", err)
	} else if own := given(cfg.Kubeconfig, cfg.Clock.Now()); own.laterThan(store) {
		if !cfg.Rotate {
			return nil, nil
		}
		if err := store.Save(own.certificate, own.key, cfg.Clock.Now()); err != nil {
			return nil, err
		}
		cfg.Logger.Info(
			"the certificate of the kubeconfig is valid, so the node does not join; the certificate is kept to be renewed",
			telemetry.KeyFile, cfg.Kubeconfig, "certificate", store.Current())
	}
	j := &Joiner{cfg: cfg, store: store, writes: named, clients: map[string]*apiclient.Client{}}
	j.manager = certificates.New(certificates.Config{
		Requester: certificates.Requester{API: j.api, Kind: certificates.Client(), Store: store, Clock: cfg.Clock},
		Template:  j.template, Renewed: j.renewed, Random: cfg.Random, Logger: cfg.Logger,
	})
	j.report()
	return j, nil
}

// storeOf returns the store of a kubeconfig's certificate, nil if there is none, and the path in the kubeconfig.
func storeOf(kubeconfig string) (*certificates.Store, string) {
	config, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: kubeconfig})
	if err != nil {
		return nil, ""
	}
	store, ok := certificates.StoreOf(config.CertFile, fileMode)
	if !ok || config.KeyFile != config.CertFile {
		return nil, config.CertFile
	}
	return &store, config.CertFile
}

// hasJoined reports whether a node does not need to join: it has a kubeconfig with another certificate than the one to
// request, which is valid or cannot be replaced because the bootstrap kubeconfig does not exist.
func hasJoined(cfg Config, store certificates.Store) bool {
	if _, err := os.Stat(cfg.Kubeconfig); err != nil {
		return false
	}
	if kept, _ := storeOf(cfg.Kubeconfig); kept != nil && kept.Current() == store.Current() {
		return false
	}
	if _, err := os.Stat(cfg.Bootstrap); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	config, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: cfg.Kubeconfig})
	if err != nil {
		return false
	}
	certificate, _, err := keyPair(config)
	return err == nil && isValid(certificate, cfg.Clock.Now())
}

// keyPair returns the client certificate and key of a REST configuration, in PEM.
func keyPair(config *rest.Config) (certificate, key []byte, err error) {
	certificate, key = config.CertData, config.KeyData
	if len(certificate) == 0 && config.CertFile != "" {
		if certificate, err = os.ReadFile(config.CertFile); err != nil {
			return nil, nil, err
		}
	}
	if len(key) == 0 && config.KeyFile != "" {
		if key, err = os.ReadFile(config.KeyFile); err != nil {
			return nil, nil, err
		}
	}
	return certificate, key, nil
}

// isValid reports whether all certificates in PEM are unexpired, and there is at least one.
func isValid(pem []byte, now time.Time) bool {
	all, err := cert.ParseCertsPEM(pem)
	return err == nil && !slices.ContainsFunc(all, func(one *x509.Certificate) bool { return now.After(one.NotAfter) })
}

// adopt copies the inline certificate of a kubeconfig, as kubeadm writes it for a control plane, into a store for
// renewal; kubeadm then changes the kubeconfig to refer to the store. A valid certificate in the store stays. It
// returns nil if the kubeconfig has none.
func adopt(cfg Config, store certificates.Store) (*certificates.Store, error) {
	config, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: cfg.Kubeconfig})
	if err != nil || len(config.CertData) == 0 || len(config.KeyData) == 0 {
		return nil, nil //nolint:nilerr // what is wrong with the kubeconfig is said by who connects with it
	}
	now := cfg.Clock.Now()
	if stored, err := store.Load(); err == nil && now.Before(stored.Leaf.NotAfter) {
		return &store, nil
	}
	if !isValid(config.CertData, now) {
		return nil, nil
	}
	if err := os.MkdirAll(cfg.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("making the directory of the node's certificate: %w", err)
	}
	if err := store.Save(config.CertData, config.KeyData, now); err != nil {
		return nil, err
	}
	cfg.Logger.Info(
		"the certificate within the kubeconfig is renewed in a file of its own, which the kubeconfig may name as client-certificate and client-key",
		telemetry.KeyFile,
		store.Current(),
	)
	return &store, nil
}

// Manager returns the manager of the certificate.
func (j *Joiner) Manager() *certificates.Manager { return j.manager }

// template returns the certificate request of a node, whose name and group determine its permissions.
func (j *Joiner) template() *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + j.cfg.NodeName, Organization: []string{"system:nodes"}},
	}
}

// Run joins, and renews the certificate until ctx ends.
func (j *Joiner) Run(ctx context.Context) {
	defer func() {
		for _, client := range j.clients {
			client.Close()
		}
	}()
	reporterEnded := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); <-reporterEnded }()
	go func() {
		defer close(reporterEnded)
		j.reportPeriodically(ctx)
	}()
	if j.cfg.Bootstrap != "" {
		if err := j.manager.Obtain(ctx); err != nil {
			return
		}
		j.report()
	}
	if j.cfg.Rotate {
		j.manager.Run(ctx)
	} else {
		<-ctx.Done()
	}
}

// api returns the client for requests: as the node while its certificate is valid, and otherwise with the bootstrap
// kubeconfig.
func (j *Joiner) api() (rest.Interface, error) {
	kubeconfig := j.cfg.Kubeconfig
	if j.cfg.Bootstrap != "" && j.manager.Current() == nil {
		kubeconfig = j.cfg.Bootstrap
	}
	client := j.clients[kubeconfig]
	if client == nil {
		var err error
		if client, err = j.cfg.Connect(kubeconfig); err != nil {
			return nil, err
		}
		j.clients[kubeconfig] = client
	}
	return client.Certificates, nil
}

// renewed writes the kubeconfig, unless it refers to the certificate or contains it. A kubeconfig with an inline
// certificate is changed to refer to the renewed one, for all processes of the node.
func (j *Joiner) renewed() error {
	if !j.writes {
		return nil
	}
	if store, _ := storeOf(j.cfg.Kubeconfig); store != nil && store.Current() == j.store.Current() {
		return nil
	}
	if own := given(j.cfg.Kubeconfig, j.cfg.Clock.Now()); own != nil && own.in(j.store) {
		return nil
	}
	server, err := j.server()
	if err != nil {
		return err
	}
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{cluster: server},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			user: {ClientCertificate: j.store.Current(), ClientKey: j.store.Current()},
		},
		Contexts:       map[string]*clientcmdapi.Context{entry: {Cluster: cluster, AuthInfo: user, Namespace: "default"}},
		CurrentContext: entry,
	})
	if err != nil {
		return fmt.Errorf("writing %s: %w", j.cfg.Kubeconfig, err)
	}
	if err := os.MkdirAll(filepath.Dir(j.cfg.Kubeconfig), dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("writing %s: %w", j.cfg.Kubeconfig, err)
	}
	if err := statedir.WriteFileAtomic(j.cfg.Kubeconfig, data, fileMode); err != nil {
		return err
	}
	j.cfg.Logger.Info("wrote the kubeconfig of the node", telemetry.KeyFile, j.cfg.Kubeconfig)
	return nil
}

// server returns the cluster entry of the bootstrap kubeconfig, or, if that does not exist because kubeadm has removed
// it, that of the kubeconfig.
func (j *Joiner) server() (*clientcmdapi.Cluster, error) {
	file := j.cfg.Bootstrap
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		file = j.cfg.Kubeconfig
	}
	from, err := clientcmd.LoadFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: is no kubeconfig", file)
	}
	if err := clientcmd.ResolveLocalPaths(from); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	context := from.Contexts[from.CurrentContext]
	if context == nil || from.Clusters[context.Cluster] == nil {
		return nil, fmt.Errorf("%s: current-context: leads to no cluster", file)
	}
	return from.Clusters[context.Cluster], nil
}

// reportPeriodically updates the health periodically.
func (j *Joiner) reportPeriodically(ctx context.Context) {
	ticker := j.cfg.Clock.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			j.report()
		}
	}
}

func (j *Joiner) report() {
	reason := ""
	if j.manager.Current() == nil {
		reason = "the node has no valid certificate yet"
		if expired := j.manager.Expires(); !expired.IsZero() {
			reason = "the node's certificate has expired at " + expired.UTC().Format(time.RFC3339)
		}
		if trouble := j.manager.Trouble(); trouble != "" {
			reason += ": " + trouble
		}
		if j.cfg.Bootstrap == "" {
			reason += ": put a valid one into " + j.store.Current() + ", or start nodestatus with --bootstrap-kubeconfig"
		}
	}
	j.cfg.Health.Set(healthName, reason)
}
