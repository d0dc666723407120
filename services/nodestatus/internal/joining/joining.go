// Package joining lets a node join its cluster by itself and stay in it. With a kubeconfig that may do no more than ask for a
// certificate it asks for the node's own, and writes the kubeconfig that all processes of the node then use; and it has that
// certificate renewed before it expires. See "TLS bootstrapping" in the Kubernetes documentation.
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
	// fileName is what the certificate's files are called, as a kubelet's.
	fileName = "kubelet-client"
	// dirMode and fileMode let the group of the process read: the node's other processes may be other users.
	dirMode, fileMode = 0o750, 0o640
	// entry names the cluster, the user and the context of the kubeconfig that is written, as a kubelet does.
	cluster, user, entry = "default-cluster", "default-auth", "default-context"
	// healthName is under what the health says how it stands.
	healthName = "joining"
	// lookAgain is how often the certificate's state is told to the health.
	lookAgain = 10 * time.Second
)

// Config says which node joins what.
type Config struct {
	// NodeName is the node's name, which its certificate is for.
	NodeName string
	// Bootstrap is the kubeconfig to ask with while there is no valid certificate; empty for a node that has been given one.
	Bootstrap string
	// Kubeconfig is the file that is written, and that all processes use.
	Kubeconfig string
	// Dir is where the certificate is kept.
	Dir string
	// Rotate says to renew the certificate: rotateCertificates of the file.
	Rotate bool
	// Connect makes a client of a kubeconfig.
	Connect func(kubeconfig string) (*apiclient.Client, error)
	// Random is that of certificates.Config.
	Random func() float64
	Health *rpc.Health
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Joiner joins. Make it with New.
type Joiner struct {
	cfg     Config
	store   certificates.Store
	manager *certificates.Manager
	// clients are those that were made, of a kubeconfig each.
	clients map[string]*apiclient.Client
	// writes says that the kubeconfig is the joiner's to write: a bootstrap kubeconfig was named, be it there or not.
	writes bool
}

// New returns a joiner, and nil when there is nothing for it to do: the node has a kubeconfig, and nothing is to be renewed. It
// fails when the directory of the certificate cannot be written.
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
		cfg.Logger.Info("the certificate of the kubeconfig is valid, so the node does not join; the certificate is kept to be renewed", telemetry.KeyFile, cfg.Kubeconfig, "certificate", store.Current())
	}
	j := &Joiner{cfg: cfg, store: store, writes: named, clients: map[string]*apiclient.Client{}}
	j.manager = certificates.New(certificates.Config{
		Requester: certificates.Requester{API: j.api, Kind: certificates.Client(), Store: store, Clock: cfg.Clock},
		Template:  j.template, Renewed: j.renewed, Random: cfg.Random, Logger: cfg.Logger,
	})
	j.tell()
	return j, nil
}

// storeOf returns where the certificate of a kubeconfig is kept, and nil when it is not in a store; with the path that it names.
func storeOf(kubeconfig string) (*certificates.Store, string) {
	way, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: kubeconfig})
	if err != nil {
		return nil, ""
	}
	store, ok := certificates.StoreOf(way.CertFile, fileMode)
	if !ok || way.KeyFile != way.CertFile {
		return nil, way.CertFile
	}
	return &store, way.CertFile
}

// hasJoined says whether a node needs no certificate of the bootstrap kubeconfig: it has a kubeconfig that leads elsewhere than to
// the certificate that would be requested, and that is valid or cannot be replaced because the bootstrap kubeconfig is not there.
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
	way, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: cfg.Kubeconfig})
	if err != nil {
		return false
	}
	certificate, _, err := keyPair(way)
	return err == nil && isValid(certificate, cfg.Clock.Now())
}

// keyPair returns the client certificate and the key of a way to an API server, in PEM.
func keyPair(way *rest.Config) (certificate, key []byte, err error) {
	certificate, key = way.CertData, way.KeyData
	if len(certificate) == 0 && way.CertFile != "" {
		if certificate, err = os.ReadFile(way.CertFile); err != nil {
			return nil, nil, err
		}
	}
	if len(key) == 0 && way.KeyFile != "" {
		if key, err = os.ReadFile(way.KeyFile); err != nil {
			return nil, nil, err
		}
	}
	return certificate, key, nil
}

// isValid says whether there are certificates in PEM and none of them has expired.
func isValid(pem []byte, now time.Time) bool {
	all, err := cert.ParseCertsPEM(pem)
	return err == nil && !slices.ContainsFunc(all, func(one *x509.Certificate) bool { return now.After(one.NotAfter) })
}

// adopt puts the certificate that a kubeconfig has within itself, as kubeadm writes it for a control plane, into a store, where it
// is renewed; kubeadm makes the kubeconfig name the store then. A valid certificate that is in the store already stays. It returns
// nil when the kubeconfig has none.
func adopt(cfg Config, store certificates.Store) (*certificates.Store, error) {
	way, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: cfg.Kubeconfig})
	if err != nil || len(way.CertData) == 0 || len(way.KeyData) == 0 {
		return nil, nil //nolint:nilerr // what is wrong with the kubeconfig is said by who connects with it
	}
	now := cfg.Clock.Now()
	if there, err := store.Load(); err == nil && now.Before(there.Leaf.NotAfter) {
		return &store, nil
	}
	if !isValid(way.CertData, now) {
		return nil, nil
	}
	if err := os.MkdirAll(cfg.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("making the directory of the node's certificate: %w", err)
	}
	if err := store.Save(way.CertData, way.KeyData, now); err != nil {
		return nil, err
	}
	cfg.Logger.Info("the certificate within the kubeconfig is renewed in a file of its own, which the kubeconfig may name as client-certificate and client-key",
		telemetry.KeyFile, store.Current())
	return &store, nil
}

// Manager has the certificate.
func (j *Joiner) Manager() *certificates.Manager { return j.manager }

// template is what a node's certificate is signed for: its name and its group decide what it may do.
func (j *Joiner) template() *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + j.cfg.NodeName, Organization: []string{"system:nodes"}}}
}

// Run joins, and renews until ctx ends.
func (j *Joiner) Run(ctx context.Context) {
	defer func() {
		for _, client := range j.clients {
			client.Close()
		}
	}()
	told := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer func() { cancel(); <-told }()
	go func() {
		defer close(told)
		j.tellEach(ctx)
	}()
	if j.cfg.Bootstrap != "" {
		if err := j.manager.Obtain(ctx); err != nil {
			return
		}
		j.tell()
	}
	if j.cfg.Rotate {
		j.manager.Run(ctx)
	} else {
		<-ctx.Done()
	}
}

// api returns who signs: as the node while its certificate is valid, and else as who may only ask for one.
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

// renewed writes the kubeconfig, unless it leads to the certificate already, or has it. A kubeconfig with a certificate within
// itself leads to the renewed one then, for all processes of the node.
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
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: server},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificate: j.store.Current(), ClientKey: j.store.Current()}},
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

// server is the way to the API server: that of the bootstrap, and without such a file, as after kubeadm has removed it, that of
// the kubeconfig.
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

// tellEach tells the health how it stands, now and then.
func (j *Joiner) tellEach(ctx context.Context) {
	ticker := j.cfg.Clock.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			j.tell()
		}
	}
}

func (j *Joiner) tell() {
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
