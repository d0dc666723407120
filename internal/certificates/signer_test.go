package certificates_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// signer implements the API server's part of certificates.k8s.io/v1, and a controller manager that signs as the test
// allows.
type signer struct {
	t   *testing.T
	api rest.Interface

	mu sync.Mutex
	// requests are the existing ones, made is the number of created ones, and looks is the number of reads of one.
	requests    map[string]*certificatesv1.CertificateSigningRequest
	made, looks int
	// life is the validity of its certificates, from begin on.
	begin time.Time
	life  time.Duration
	// verdict is the result for a request: signed, denied, none ("").
	verdict certificatesv1.RequestConditionType
	// broken is the status of every answer when it is not 0.
	broken int
	ca     *x509.Certificate
	key    *ecdsa.PrivateKey
}

func newSigner(t *testing.T, begin time.Time) *signer {
	t.Helper()
	s := &signer{
		t:        t,
		requests: map[string]*certificatesv1.CertificateSigningRequest{},
		begin:    begin,
		life:     time.Hour,
		verdict:  certificatesv1.CertificateApproved,
	}
	var err error
	if s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	s.ca = &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "ca"},
		NotBefore:             begin,
		NotAfter:              begin.AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	known := runtime.NewScheme()
	if err := certificatesv1.AddToScheme(known); err != nil {
		t.Fatal(err)
	}
	version := certificatesv1.SchemeGroupVersion
	s.api, err = rest.RESTClientForConfigAndClient(
		&rest.Config{Host: server.URL, APIPath: "/apis", ContentConfig: rest.ContentConfig{
			GroupVersion: &version, NegotiatedSerializer: serializer.NewCodecFactory(known).WithoutConversion(),
		}},
		server.Client(),
	)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *signer) set(change func(*signer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *signer) looked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks > 0
}

func (s *signer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

func (s *signer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resource := certificatesv1.Resource("certificatesigningrequests")
	switch name := path.Base(r.URL.Path); {
	case s.broken != 0:
		w.WriteHeader(s.broken)
	case r.Method == http.MethodPost:
		var request certificatesv1.CertificateSigningRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			s.t.Error(err)
		}
		if s.requests[request.Name] != nil {
			s.answer(w, http.StatusConflict, apierrors.NewAlreadyExists(resource, request.Name).Status())
			return
		}
		s.made++
		s.requests[request.Name] = &request
		s.answer(w, http.StatusCreated, request)
	case s.requests[name] == nil:
		s.answer(w, http.StatusNotFound, apierrors.NewNotFound(resource, name).Status())
	default:
		s.looks++
		s.sign(s.requests[name])
		s.answer(w, http.StatusOK, s.requests[name])
	}
}

func (s *signer) answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(object); err != nil {
		s.t.Error(err)
	}
}

func (s *signer) sign(request *certificatesv1.CertificateSigningRequest) {
	if s.verdict == "" || request.Status.Certificate != nil {
		return
	}
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: s.verdict, Status: v1.ConditionTrue, Reason: "Test", Message: "the test says so"},
	}
	if s.verdict != certificatesv1.CertificateApproved {
		return
	}
	block, _ := pem.Decode(request.Spec.Request)
	wanted, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		s.t.Error(err)
		return
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(int64(s.made + 1)),
		Subject:      wanted.Subject,
		DNSNames:     wanted.DNSNames,
		IPAddresses:  wanted.IPAddresses,
		NotBefore:    s.begin,
		NotAfter:     s.begin.Add(s.life),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, s.ca, wanted.PublicKey, s.key)
	if err != nil {
		s.t.Error(err)
	}
	request.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
}
