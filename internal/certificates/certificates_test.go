package certificates_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/certificates"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func template(names ...string) *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject: pkix.Name{
			CommonName:   "system:node:node-1",
			Organization: []string{"system:nodes"},
		},
		DNSNames:    names,
		IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1)},
	}
}

func requester(t *testing.T, s *signer, at clock.Clock) certificates.Requester {
	t.Helper()
	return certificates.Requester{
		API:   func() (rest.Interface, error) { return s.api, nil },
		Kind:  certificates.Serving(),
		Store: certificates.Store{Dir: t.TempDir(), Name: "kubelet-server", Mode: 0o640},
		Clock: at,
	}
}

func TestACertificateThatIsSignedIsTheCurrentOne(t *testing.T) {
	s := newSigner(t, time.Now())
	r := requester(t, s, clock.RealClock{})
	if _, err := r.Store.Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v, want that there is none", err)
	}
	for range 4 {
		if err := r.Request(t.Context(), template("node-1")); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := r.Store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if pair.Leaf.Subject.CommonName != "system:node:node-1" || len(pair.Leaf.DNSNames) != 1 || pair.PrivateKey == nil {
		t.Errorf("got %v for %v", pair.Leaf.Subject, pair.Leaf.DNSNames)
	}
	if mode := stat(t, r.Store.Current()).Mode().Perm(); mode != 0o640 {
		t.Errorf("the file has mode %o, want 0o640", mode)
	}
	files, err := os.ReadDir(r.Store.Dir)
	if err != nil || len(files) != 3 {
		t.Errorf("the directory has %v, %v; want the link, its file and the one before", files, err)
	}
	for name, request := range s.requests {
		if request.Spec.SignerName != "kubernetes.io/kubelet-serving" || len(request.Spec.Usages) != 2 {
			t.Errorf("%s is for %s, %v, want %q and 2 entries",
				name, request.Spec.SignerName, request.Spec.Usages, "kubernetes.io/kubelet-serving")
		}
	}
}

func stat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestAKilledProcessGoesOnWithItsRequest: the next process gets the certificate of the request that the killed one
// made.
func TestAKilledProcessGoesOnWithItsRequest(t *testing.T) {
	s := newSigner(t, time.Now())
	s.verdict = ""
	r := requester(t, s, clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Request(ctx, template()) }()
	eventually.That(t, "it is waited for", s.looked)
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "kubectl certificate approve node-csr-") {
		t.Fatalf("got %v, want what to do", err)
	}
	s.set(func(s *signer) { s.verdict = certificatesv1.CertificateApproved })
	if err := r.Request(t.Context(), template()); err != nil {
		t.Fatal(err)
	}
	if s.count() != 1 {
		t.Errorf("%d requests were made, want 1", s.count())
	}
}

// TestARefusedRequestIsRecreated checks that the new request has another key, because the same one would be refused
// again.
func TestARefusedRequestIsRecreated(t *testing.T) {
	s := newSigner(t, time.Now())
	s.verdict = certificatesv1.CertificateDenied
	r := requester(t, s, clock.RealClock{})
	if err := r.Request(
		t.Context(),
		template(),
	); err == nil ||
		!strings.Contains(err.Error(), "Denied: Test: the test says so") {
		t.Fatalf("got %v, want the reason", err)
	}
	s.set(func(s *signer) { s.verdict = certificatesv1.CertificateApproved })
	if err := r.Request(t.Context(), template()); err != nil {
		t.Fatal(err)
	}
	if s.count() != 2 {
		t.Errorf("%d requests were made, want 2", s.count())
	}
}

// managed runs a manager until the test ends.
func managed(t *testing.T, r certificates.Requester, names func() []string) *certificates.Manager {
	t.Helper()
	m := certificates.New(certificates.Config{
		Requester: r, Random: func() float64 { return 0.5 }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Template: func() *x509.CertificateRequest { return template(names()...) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

func TestACertificateIsRenewedBeforeItExpires(t *testing.T) {
	start := time.Now().Truncate(time.Second)
	at := clocktesting.NewFakeClock(start)
	s := newSigner(t, start)
	m := managed(t, requester(t, s, at), func() []string { return []string{"node-1"} })
	eventually.That(t, "there is one", func() bool { at.Step(250 * time.Millisecond); return m.Current() != nil })
	first := m.Current().Leaf
	if got := certificates.RenewAt(first, 0.5).Sub(first.NotBefore); got != 48*time.Minute {
		t.Errorf("it is renewed after %v, want 80 %% of an hour", got)
	}
	s.set(func(s *signer) { s.begin = start.Add(47 * time.Minute); s.broken = http.StatusInternalServerError })
	at.SetTime(start.Add(47 * time.Minute))
	if m.Failures() != 0 {
		t.Fatal("it was requested too early")
	}
	eventually.That(
		t,
		"requests fail",
		func() bool { at.Step(250 * time.Millisecond); return m.Failures() > 0 && m.Trouble() != "" },
	)
	if m.Current() == nil {
		t.Error("the old one is not used until it expires")
	}
	s.set(func(s *signer) { s.broken = 0 })
	eventually.That(
		t,
		"there is another",
		func() bool { at.Step(time.Second); return m.Current() != nil && m.Expires().After(first.NotAfter) },
	)
	if m.Trouble() != "" {
		t.Errorf("trouble is left: %s", m.Trouble())
	}
}

// TestAClockThatJumpsByAYear: after a jump forward the certificate has expired, and there is another one within the
// time of a look. After a jump back the certificate stays, and none is requested, until the clock is right again.
func TestAClockThatJumpsByAYear(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for _, jump := range []time.Duration{year, -year} {
		t.Run(jump.String(), func(t *testing.T) {
			start := time.Now().Truncate(time.Second)
			at := clocktesting.NewFakeClock(start)
			s := newSigner(t, start)
			m := managed(t, requester(t, s, at), func() []string { return []string{"node-1"} })
			eventually.That(t, "there is one", func() bool { at.Step(250 * time.Millisecond); return m.Current() != nil })
			first, requests := m.Expires(), s.count()
			s.set(func(s *signer) { s.begin = at.Now().Add(jump) })
			if jump > 0 {
				at.SetTime(at.Now().Add(jump))
				if m.Current() != nil {
					t.Error("the expired certificate is the current one")
				}
				eventually.That(t, "there is another", func() bool {
					at.Step(250 * time.Millisecond)
					return m.Current() != nil && m.Expires().After(first)
				})
				return
			}
			at.SetTime(at.Now().Add(jump))
			for range 100 {
				at.Step(time.Minute)
			}
			if m.Current() == nil || !m.Expires().Equal(first) || s.count() != requests {
				t.Errorf("after the jump it expires at %v with %d requests, want %v and %d", m.Expires(), s.count(), first, requests)
			}
		})
	}
}

func TestOtherNamesGetAnotherCertificate(t *testing.T) {
	at := clocktesting.NewFakeClock(time.Now())
	s := newSigner(t, at.Now())
	var more atomic.Bool
	m := managed(t, requester(t, s, at), func() []string {
		if more.Load() {
			return []string{"node-1", "node-1.example"}
		}
		return []string{"node-1"}
	})
	eventually.That(t, "there is one", func() bool { at.Step(250 * time.Millisecond); return m.Current() != nil })
	more.Store(true)
	eventually.That(
		t,
		"it has both names",
		func() bool { at.Step(time.Second); c := m.Current(); return c != nil && len(c.Leaf.DNSNames) == 2 },
	)
}

// TestADirectoryThatIsMissingIsMade, for example one that could not be made at the start because the disk was full.
func TestADirectoryThatIsMissingIsMade(t *testing.T) {
	r := requester(t, newSigner(t, time.Now()), clock.RealClock{})
	r.Store.Dir = filepath.Join(r.Store.Dir, "pki")
	if err := r.Request(t.Context(), template("node-1")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Store.Load(); err != nil {
		t.Error(err)
	}
}

func TestUnreadableRecordsAreReplaced(t *testing.T) {
	at := clocktesting.NewFakeClock(time.Now())
	s := newSigner(t, at.Now())
	r := requester(t, s, at)
	if err := os.WriteFile(r.Store.Current(), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := managed(t, r, func() []string { return nil })
	eventually.That(t, "there is one", func() bool { at.Step(250 * time.Millisecond); return m.Current() != nil })
}

func TestTheStoreOfAPath(t *testing.T) {
	store, ok := certificates.StoreOf("/var/lib/kubelet/pki/kubelet-client-current.pem", 0o600)
	if !ok || store.Name != "kubelet-client" ||
		store.Current() != filepath.Join("/var/lib/kubelet/pki", "kubelet-client-current.pem") {
		t.Errorf("StoreOf(0o600) = %+v, %v, want true, Name %q and Current %v",
			store, ok, "kubelet-client", filepath.Join("/var/lib/kubelet/pki", "kubelet-client-current.pem"))
	}
	if _, ok := certificates.StoreOf("/etc/node.crt", 0o600); ok {
		t.Error("a file of another name has a store")
	}
}
