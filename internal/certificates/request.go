package certificates

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// requestTimeout bounds each request to the API server.
	requestTimeout = 10 * time.Second
	// firstLook and lastLook are the first and the longest interval between two reads of a pending request.
	firstLook = 250 * time.Millisecond
	lastLook  = 5 * time.Second
	// signingTimeout is the time to wait for a signature, as for the kubelet.
	signingTimeout = 15 * time.Minute
)

// resource is the name of the API resource.
const resource = "certificatesigningrequests"

// Kind is the purpose of a certificate.
type Kind struct {
	// Signer is the name of the signer, for example "kubernetes.io/kube-apiserver-client-kubelet".
	Signer string
	// Usages are the permitted uses of the key.
	Usages []certificatesv1.KeyUsage
}

// Client returns the kind of the certificate by which an API server authenticates a node.
func Client() Kind {
	return Kind{
		Signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
	}
}

// Serving returns the kind of the certificate of a node's HTTP API.
func Serving() Kind {
	return Kind{
		Signer: certificatesv1.KubeletServingSignerName,
		Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
	}
}

// Requester requests certificates.
type Requester struct {
	// API returns the client for certificates.k8s.io/v1. It is called for each request.
	API   func() (rest.Interface, error)
	Kind  Kind
	Store Store
	Clock clock.Clock
}

// errRefused is the error of a request that is denied or has failed.
var errRefused = errors.New("refused")

// Request requests a certificate for the subject and the names of the template, and saves it. It waits for the
// signature for at most 15 minutes, or until ctx ends. It writes the key to disk before the request, and derives the
// request's name from it: after a kill it continues with the same request, instead of another one that must be
// approved.
func (r Requester) Request(ctx context.Context, template *x509.CertificateRequest) error {
	key, err := r.pendingKey()
	if err != nil {
		return err
	}
	private, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", r.Store.pending(), err), statedir.RemoveFile(r.Store.pending()))
	}
	request, err := cert.MakeCSRFromTemplate(private, template)
	if err != nil {
		return fmt.Errorf("making a request of a certificate: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, signingTimeout)
	defer cancel()
	api, err := r.API()
	if err != nil {
		return err
	}
	signed, err := r.signed(ctx, api, r.name(private, template), request)
	if err != nil {
		if errors.Is(err, errRefused) {
			// The same request would be refused again.
			err = errors.Join(err, statedir.RemoveFile(r.Store.pending()))
		}
		return err
	}
	return r.Store.Save(signed, key, r.Clock.Now())
}

// pendingKey returns the key of a pending request, or a new one.
func (r Requester) pendingKey() ([]byte, error) {
	key, err := os.ReadFile(r.Store.pending())
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if key, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, statedir.WriteIn(r.Store.Dir, func() error {
		return statedir.WriteFileAtomic(r.Store.pending(), key, 0o600)
	})
}

// name returns the name of the request, which is a function of the key and the template.
func (r Requester) name(private any, template *x509.CertificateRequest) string {
	sum := sha256.New()
	if signer, ok := private.(crypto.Signer); ok {
		if public, err := x509.MarshalPKIXPublicKey(signer.Public()); err == nil {
			sum.Write(public)
		}
	}
	fmt.Fprintf(sum, "\n%s\n%s\n%s\n%s\n", r.Kind.Signer, template.Subject, template.DNSNames, template.IPAddresses)
	return "node-csr-" + hex.EncodeToString(sum.Sum(nil))[:40]
}

// signed waits for the signature of a request and returns its certificates in PEM.
func (r Requester) signed(ctx context.Context, api rest.Interface, name string, request []byte) ([]byte, error) {
	if err := r.create(ctx, api, name, request); err != nil {
		return nil, err
	}
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		var found certificatesv1.CertificateSigningRequest
		err := r.call(
			ctx,
			func(ctx context.Context) rest.Result { return api.Get().Resource(resource).Name(name).Do(ctx) },
			&found,
		)
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("the certificate signing request %s has been deleted: %w", name, errRefused)
		case err == nil:
			certificates, err := verdict(&found)
			if certificates != nil || err != nil {
				return certificates, err
			}
		case !temporary(err):
			return nil, fmt.Errorf("reading the certificate signing request %s: %w", name, err)
		}
		timer := r.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf(
				"the certificate signing request %s has not been signed: %w: approve it with 'kubectl certificate approve %[1]s', or see why the controller manager does not",
				name,
				ctx.Err(),
			)
		case <-timer.C():
		}
	}
}

// create creates the request unless it exists.
func (r Requester) create(ctx context.Context, api rest.Interface, name string, request []byte) error {
	made := &certificatesv1.CertificateSigningRequest{
		TypeMeta: metav1.TypeMeta{
			APIVersion: certificatesv1.SchemeGroupVersion.String(),
			Kind:       "CertificateSigningRequest",
		},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: r.Kind.Signer, Usages: r.Kind.Usages,
		},
	}
	err := r.call(
		ctx,
		func(ctx context.Context) rest.Result { return api.Post().Resource(resource).Body(made).Do(ctx) },
		&certificatesv1.CertificateSigningRequest{},
	)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making a certificate signing request for %s: %w", r.Kind.Signer, err)
	}
	return nil
}

// call makes one request with its own deadline.
func (r Requester) call(
	ctx context.Context,
	do func(context.Context) rest.Result,
	into *certificatesv1.CertificateSigningRequest,
) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return do(ctx).Into(into)
}

// temporary reports whether a retry may succeed: the API server is unreachable, overloaded, or did not answer in time.
func temporary(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) ||
		apierrors.IsServiceUnavailable(err)
}

// verdict returns the certificates of a signed request, errRefused for a denied or failed one, and neither for a
// pending one.
func verdict(request *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	approved := false
	for _, c := range request.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			if c.Status != v1.ConditionFalse {
				return nil, fmt.Errorf(
					"the certificate signing request %s: %s: %s: %s: %w",
					request.Name,
					c.Type,
					c.Reason,
					c.Message,
					errRefused,
				)
			}
		case certificatesv1.CertificateApproved:
			approved = c.Status != v1.ConditionFalse
		}
	}
	if !approved || len(request.Status.Certificate) == 0 {
		return nil, nil
	}
	return request.Status.Certificate, nil
}
