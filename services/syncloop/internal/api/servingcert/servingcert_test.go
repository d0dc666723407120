package servingcert_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/pemfiles"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/servingcert"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestACertificateOfItsOwnIsKeptAndReplacedBeforeItsEnd(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	own := servingcert.SelfSigned{Dir: filepath.Join(t.TempDir(), "pki"), Name: "node-1", Addresses: []net.IP{net.IPv4(192, 0, 2, 1)}, Clock: clk}
	noError(t, own.Ensure())
	certificate, key := own.Paths()
	files := pemfiles.Certificate(certificate, key)
	first := leaf(t, files.Get)
	if first.VerifyHostname("node-1") != nil || first.VerifyHostname("192.0.2.1") != nil {
		t.Errorf("it is of %v and %v", first.DNSNames, first.IPAddresses)
	}
	info, err := os.Stat(key)
	noError(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the key has the mode %v, want Perm 0o600", info.Mode())
	}
	noError(t, own.Ensure())
	if again := leaf(t, files.Get); !again.Equal(first) {
		t.Error("a good certificate has been replaced")
	}
	// The node has another address, as after a move of the machine.
	own.Addresses = append(own.Addresses, net.IPv4(192, 0, 2, 2))
	noError(t, own.Ensure())
	second := leaf(t, files.Get)
	if second.VerifyHostname("192.0.2.2") != nil {
		t.Errorf("it is of %v", second.IPAddresses)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		own.Keep(ctx, own.Ensure, func(err error) { t.Error(err) })
	}()
	eventually.That(t, "it waits for the time to renew", clk.HasWaiters)
	clk.Step(300 * 24 * time.Hour)
	eventually.That(t, "there is another certificate", func() bool {
		current, _, err := files.Get() // between the writes of the two files, Get returns the old certificate and an error
		return err == nil && !current.Leaf.Equal(second)
	})
	cancel()
	<-done
	if third := leaf(t, files.Get); !third.NotAfter.After(second.NotAfter) {
		t.Errorf("it is the one that ends at %s", third.NotAfter)
	}
}

// TestACertificateThatCannotBeWrittenIsTriedAgain soon, and not after the time for one that is good.
func TestACertificateThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	clk, dir := clocktesting.NewFakeClock(time.Now()), filepath.Join(t.TempDir(), "missing")
	own := servingcert.SelfSigned{Dir: filepath.Join(dir, "pki"), Name: "node-1", Clock: clk}
	if err := own.Ensure(); err == nil {
		t.Fatal("a certificate is written into a directory that is not there")
	}
	ctx, cancel := context.WithCancel(t.Context())
	failures, done := make(chan error, 10), make(chan struct{})
	go func() {
		defer close(done)
		own.Keep(ctx, own.Ensure, func(err error) { failures <- err })
	}()
	again := func() {
		eventually.That(t, "it waits", clk.HasWaiters)
		clk.Step(time.Minute)
	}
	again()
	if err := <-failures; err == nil {
		t.Error("a failure without an error")
	}
	noError(t, os.Mkdir(dir, 0o700))
	again()
	eventually.That(t, "there is a certificate", func() bool {
		_, ok, err := pemfiles.Certificate(own.Paths()).Get()
		return ok && err == nil
	})
	cancel()
	<-done
}

func TestFilesThatDoNotGoTogether(t *testing.T) {
	dir := t.TempDir()
	one := servingcert.SelfSigned{Dir: filepath.Join(dir, "one"), Name: "node-1", Clock: clocktesting.NewFakeClock(time.Now())}
	other := one
	other.Dir = filepath.Join(dir, "other")
	noError(t, errors.Join(one.Ensure(), other.Ensure()))
	certificate, _ := one.Paths()
	_, key := other.Paths()
	if _, ok, err := pemfiles.Certificate(certificate, key).Get(); ok || err == nil {
		t.Errorf("Get() = %v, %v, want false and an error", ok, err)
	}
	if _, ok, err := pemfiles.Authorities(key).Get(); ok || err == nil {
		t.Errorf("a key is taken for an authority: %v, %v", ok, err)
	}
}

// TestWhatTheServerShows checks that there is no handshake without a certificate, and that clients receive the list of
// accepted authorities.
func TestWhatTheServerShows(t *testing.T) {
	own := servingcert.SelfSigned{Dir: filepath.Join(t.TempDir(), "pki"), Name: "node-1", Clock: clocktesting.NewFakeClock(time.Now())}
	noError(t, own.Ensure())
	certificate, key := own.Paths()
	files := pemfiles.Certificate(certificate, key)
	roots := pemfiles.Authorities(certificate)
	shown := func() (*tls.Certificate, error) {
		current, _, err := files.Get()
		return current, err
	}
	var requested *tls.CertificateRequestInfo
	client := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: "node-1", RootCAs: x509.NewCertPool(),
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			requested = info
			return &tls.Certificate{}, nil
		},
	}
	client.RootCAs.AddCert(leaf(t, files.Get))
	cas := func() (*x509.CertPool, bool) {
		pool, ok, _ := roots.Get()
		return pool, ok
	}
	noError(t, handshake(t, servingcert.Config(tls.VersionTLS12, nil, shown, cas), client))
	if requested == nil || len(requested.AcceptableCAs) != 1 {
		t.Errorf("the client is asked %+v", requested)
	}
	none := func() (*tls.Certificate, error) { return nil, errors.New("none yet") }
	if err := handshake(t, servingcert.Config(tls.VersionTLS12, nil, none, nil), client); err == nil {
		t.Error("a handshake without a certificate")
	}
	old := client.Clone()
	old.MaxVersion = tls.VersionTLS12
	if err := handshake(t, servingcert.Config(tls.VersionTLS13, nil, shown, nil), old); err == nil {
		t.Error("a handshake of an older version than the least")
	}
}

// handshake returns the error of the client.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Server(far, server).HandshakeContext(t.Context()) // only the error of the client is checked
		_ = far.Close()
	}()
	err := tls.Client(near, client).HandshakeContext(t.Context())
	_ = near.Close()
	<-done
	return err
}

func leaf(t *testing.T, get func() (*tls.Certificate, bool, error)) *x509.Certificate {
	t.Helper()
	certificate, ok, err := get()
	if !ok || err != nil {
		t.Fatalf("get() = %v, %v, want true", ok, err)
	}
	return certificate.Leaf
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
