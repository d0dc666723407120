package podcertificates_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func publicOf(t *testing.T, key string) crypto.PublicKey {
	t.Helper()
	b, rest := pem.Decode([]byte(key))
	if b == nil || len(rest) > 0 {
		t.Fatalf("a key that is no PEM, or more")
	}
	private, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return private.(crypto.Signer).Public()
}

func provedBy(t *testing.T, proof []byte) crypto.PublicKey {
	t.Helper()
	request, err := x509.ParseCertificateRequest(proof)
	if err != nil {
		t.Fatal(err)
	}
	if err := request.CheckSignature(); err != nil {
		t.Fatal(err)
	}
	return request.PublicKey
}

func TestEachKindOfKey(t *testing.T) {
	for keyType, is := range map[string]func(crypto.PublicKey) bool{
		"RSA3072":   func(k crypto.PublicKey) bool { return k.(*rsa.PublicKey).N.BitLen() == 3072 },
		"RSA4096":   func(k crypto.PublicKey) bool { return k.(*rsa.PublicKey).N.BitLen() == 4096 },
		"ECDSAP256": func(k crypto.PublicKey) bool { return k.(*ecdsa.PublicKey).Curve.Params().BitSize == 256 },
		"ECDSAP384": func(k crypto.PublicKey) bool { return k.(*ecdsa.PublicKey).Curve.Params().BitSize == 384 },
		"ECDSAP521": func(k crypto.PublicKey) bool { return k.(*ecdsa.PublicKey).Curve.Params().BitSize == 521 },
		"ED25519":   func(k crypto.PublicKey) bool { _, ok := k.(ed25519.PublicKey); return ok },
	} {
		inBubble(t, func(r *rig) {
			p := source()
			p.KeyType = keyType
			_, _, err := r.certs.Get(context.Background(), webPod(), "tls", 2, p)
			if err == nil || !strings.Contains(err.Error(), "not issued") {
				t.Fatal(err)
			}
			synctest.Wait()
			if request := r.server.last(t, 1); !is(provedBy(t, request.Spec.StubPKCS10Request)) {
				t.Errorf("%s: another kind of key", keyType)
			}
			r.server.issue(r.server.last(t, 1), block("leaf"), time.Hour, 2*time.Hour)
			if key := r.wants(block("leaf")); !is(publicOf(t, key)) {
				t.Errorf("%s: another kind of key", keyType)
			}
		})
	}
}
