package apiauth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/apiauth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// goodToken and newToken are valid.
const (
	goodToken = "good-token"
	newToken  = "new-token"
)

// apiServer is a fake API server for reviews. It accepts two tokens, and authorizes the users in allow.
type apiServer struct {
	t *testing.T
	// allow has the authorized requests, as "USER VERB SUBRESOURCE".
	allow []string

	mu       sync.Mutex
	reviewed []string
	broken   func(http.ResponseWriter, *http.Request)
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.reviewed = append(s.reviewed, filepath.Base(r.URL.Path))
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		broken(w, r)
		return
	}
	s.answer(w, r)
}

// answer answers a review as an API server that works.
func (s *apiServer) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var answer any
	switch filepath.Base(r.URL.Path) {
	case "tokenreviews":
		var review authenticationv1.TokenReview
		noError(s.t, json.NewDecoder(r.Body).Decode(&review))
		if review.Spec.Token == goodToken || review.Spec.Token == newToken {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: "robot", UID: "7", Groups: []string{"robots"}, Extra: map[string]authenticationv1.ExtraValue{"from": {"factory"}},
			}}
		}
		answer = review
	case "subjectaccessreviews":
		var review authorizationv1.SubjectAccessReview
		noError(s.t, json.NewDecoder(r.Body).Decode(&review))
		about := review.Spec.ResourceAttributes
		if about.Resource != "nodes" || about.Name != "node-1" || about.Version != "v1" || about.Namespace != "" {
			s.t.Errorf("asked about %+v", about)
		}
		if review.Spec.User == "robot" && (review.Spec.UID != "7" || !slices.Contains(review.Spec.Groups, "robots") ||
			!slices.Contains(review.Spec.Groups, "system:authenticated") || fmt.Sprint(review.Spec.Extra) != "map[from:[factory]]") {
			s.t.Errorf("asked for %+v", review.Spec)
		}
		review.Status.Allowed = slices.Contains(s.allow, review.Spec.User+" "+about.Verb+" "+about.Subresource)
		answer = review
	}
	noError(s.t, json.NewEncoder(w).Encode(answer))
}

func (s *apiServer) breakBy(how func(http.ResponseWriter, *http.Request)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = how
}

// requests returns the requests since its last call.
func (s *apiServer) requests() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	requests := strings.Join(s.reviewed, " ")
	s.reviewed = nil
	return requests
}

// rig is a server behind a guard, over real TLS.
type rig struct {
	t     *testing.T
	api   *apiServer
	clock *clocktesting.FakeClock
	url   string
	roots *x509.CertPool
	ca    *authority
}

func newRig(t *testing.T, change func(*apiauth.Config)) *rig {
	t.Helper()
	r := &rig{t: t, api: &apiServer{t: t}, clock: clocktesting.NewFakeClock(time.Now()), ca: newAuthority(t)}
	ctx, cancel := context.WithCancel(context.Background())
	api := httptest.NewServer(r.api)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	noError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "`+api.URL+`"}}], users: [{name: a, user: {}}]}`), 0o600))
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: kubeconfig, Service: nodeconfig.SyncLoop, QPS: 1000, Burst: 1000, ContentType: "application/json",
	})
	noError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(r.ca.cert)
	cfg := apiauth.Config{
		NodeName: "node-1", ClientCAs: func() (*x509.CertPool, bool) { return pool, true }, Tokens: client.Authentication, TokenTTL: 2 * time.Minute,
		Access: client.Authorization, AllowedTTL: 5 * time.Minute, DeniedTTL: 30 * time.Second, Clock: r.clock,
		Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	guard := apiauth.New(ctx, cfg)
	server := httptest.NewUnstartedServer(guard.Protect(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		user := apiauth.UserOf(req.Context())
		_, err := fmt.Fprintf(w, "%s of %v", user.Name, user.Groups)
		noError(t, err)
	}), "pods", "proxy"))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	r.url, r.roots = server.URL, x509.NewCertPool()
	r.roots.AddCert(server.Certificate())
	t.Cleanup(func() {
		server.Close()
		cancel()
		client.Close()
		api.Close()
	})
	return r
}

// get sends a request with a token, a certificate, both or neither.
func (r *rig) get(token string, certificate *tls.Certificate) (int, string) {
	r.t.Helper()
	return r.getFrom("127.0.0.1", token, certificate)
}

// getFrom is get from an address of the loopback interface.
func (r *rig) getFrom(address, token string, certificate *tls.Certificate) (int, string) {
	r.t.Helper()
	config := &tls.Config{RootCAs: r.roots, MinVersion: tls.VersionTLS12}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, DialContext: dialer.DialContext}
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.url+"/pods", nil)
	noError(r.t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := transport.RoundTrip(request)
	noError(r.t, err)
	body, err := io.ReadAll(answer.Body)
	noError(r.t, err)
	noError(r.t, answer.Body.Close())
	return answer.StatusCode, strings.TrimSpace(string(body))
}

func (r *rig) want(code int, words, token string, certificate *tls.Certificate) {
	r.t.Helper()
	got, body := r.get(token, certificate)
	if got != code || !strings.Contains(body, words) {
		r.t.Errorf("got %d %q, want %d with %q", got, body, code, words)
	}
	if token != "" && strings.Contains(body, token) {
		r.t.Errorf("the answer has the token: %q", body)
	}
}

func TestATokenIsAskedForOnceAndKept(t *testing.T) {
	r := newRig(t, nil)
	r.api.allow = []string{"robot get proxy"}
	r.want(200, "robot of [robots system:authenticated]", goodToken, nil)
	r.want(200, "robot", goodToken, nil)
	if got := r.api.requests(); got != "tokenreviews subjectaccessreviews subjectaccessreviews" {
		t.Errorf("asked %q: each once, the finer subresource first", got)
	}
	// Cached answers are used until they expire, also while the API server is down.
	r.api.breakBy(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "away", http.StatusInternalServerError) })
	r.clock.Step(29 * time.Second)
	r.want(200, "robot", goodToken, nil)
	r.clock.Step(2 * time.Minute)
	r.want(401, "has not answered", goodToken, nil)
	r.api.breakBy(nil)
	r.want(200, "robot", goodToken, nil)
	r.want(401, "rejects the token", "made-up", nil)
	r.api.requests()
	r.want(401, "rejects the token", "made-up", nil)
	if got := r.api.requests(); got != "" {
		t.Errorf("asked %q again for a token that is not good", got)
	}
}

func TestAForbiddenRequestNamesThePermission(t *testing.T) {
	r := newRig(t, nil)
	r.want(403, "Forbidden (user=robot, verb=get, resource=nodes, subresource(s)=[pods proxy])", goodToken, nil)
	r.api.mu.Lock()
	r.api.allow = []string{"robot get pods"}
	r.api.mu.Unlock()
	r.want(403, "Forbidden", goodToken, nil)
	r.clock.Step(31 * time.Second)
	r.want(200, "robot", goodToken, nil)
}

func TestAClientCertificateNamesItsUser(t *testing.T) {
	r := newRig(t, nil)
	r.api.allow = []string{"kube-apiserver get proxy", "robot get proxy"}
	good := r.ca.client(t, pkix.Name{CommonName: "kube-apiserver", Organization: []string{"masters"}}, x509.ExtKeyUsageClientAuth, time.Hour)
	r.want(200, "kube-apiserver of [masters system:authenticated]", "", &good)
	for what, certificate := range map[string]tls.Certificate{
		"of another authority": newAuthority(t).client(t, pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageClientAuth, time.Hour),
		"for servers":          r.ca.client(t, pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth, time.Hour),
		"of before":            r.ca.client(t, pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageClientAuth, -time.Minute),
	} {
		t.Log(what)
		r.want(401, "the client certificate is not accepted", "", &certificate)
		r.want(200, "robot", goodToken, &certificate) // a valid token is accepted although the certificate is not
	}
	anonymous := r.ca.client(t, pkix.Name{}, x509.ExtKeyUsageClientAuth, time.Hour)
	r.want(401, "names no user", "", &anonymous)
}

func TestAccessIsDeniedByDefault(t *testing.T) {
	r := newRig(t, nil)
	r.want(401, "show a client certificate or a bearer token", "", nil)
	if got := r.api.requests(); got != "" {
		t.Errorf("asked %q for nobody, want an empty text", got)
	}
	open := newRig(t, func(cfg *apiauth.Config) { cfg.Anonymous = true })
	open.api.allow = []string{"system:anonymous get pods"}
	open.want(200, "system:anonymous of [system:unauthenticated]", "", nil)
	open.want(401, "rejects the token", "made-up", nil) // invalid credentials are not treated as anonymous
	alone := newRig(t, func(cfg *apiauth.Config) { cfg.Tokens, cfg.Access = nil, nil })
	certificate := alone.ca.client(t, pkix.Name{CommonName: "me"}, x509.ExtKeyUsageClientAuth, time.Hour)
	alone.want(200, "me of", "", &certificate)
	alone.want(401, "tokens are not accepted", goodToken, nil)
	alone.want(401, "show a client certificate", "", nil)
}

// TestAnAPIServerThatHangs checks that a request fails after a bounded time, and that requests for the same answer
// share one call.
func TestAnAPIServerThatHangs(t *testing.T) {
	r := newRig(t, nil)
	end := make(chan struct{})
	r.api.breakBy(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-end:
		case <-req.Context().Done():
		}
	})
	begun := time.Now()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { r.want(401, "the API server, which authenticates tokens, has not answered", goodToken, nil) })
	}
	all.Wait()
	close(end)
	if took := time.Since(begun); took > apiauth.Timeout+time.Minute {
		t.Errorf("it took %s", took)
	}
	if got := strings.Count(r.api.requests(), "tokenreviews"); got > 2 {
		t.Errorf("%d calls for one token", got)
	}
}

// TestAnAPIServerThatIsBusy checks that a request is retried after the Retry-After of the API server, and that access
// is denied without an answer.
func TestAnAPIServerThatIsBusy(t *testing.T) {
	r := newRig(t, nil)
	r.api.allow = []string{"robot get pods"}
	var once sync.Once
	r.api.breakBy(func(w http.ResponseWriter, req *http.Request) {
		busy := false
		once.Do(func() { busy = true })
		if busy {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "later", http.StatusTooManyRequests)
			return
		}
		r.api.breakBy(nil)
		r.api.ServeHTTP(w, req)
	})
	r.want(200, "robot", goodToken, nil)
	r.clock.Step(6 * time.Minute)
	r.api.breakBy(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "subjectaccessreviews") {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		r.api.breakBy(nil)
		r.api.ServeHTTP(w, req)
		r.api.breakBy(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	})
	r.want(500, "has not answered", goodToken, nil)
}

// authority signs client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	noError(t, err)
	cert, err := x509.ParseCertificate(der)
	noError(t, err)
	return &authority{cert: cert, key: key}
}

func (a *authority) client(
	t *testing.T, subject pkix.Name, usage x509.ExtKeyUsage, life time.Duration,
) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	noError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	noError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
