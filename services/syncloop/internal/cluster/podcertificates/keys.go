package podcertificates

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
)

// The types of PEM blocks.
const (
	pemKey         = "PRIVATE KEY"
	pemCertificate = "CERTIFICATE"
)

// newKey creates a key of a type, which is the API's word, and a certificate request that proves possession of it. The
// key is PEM of PKCS #8.
func newKey(keyType string) (key, proof []byte, err error) {
	signer, err := generate(keyType)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key of the type %s: %w", keyType, err)
	}
	// The pod is described by the other fields of the request, which the API server checks.
	proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, signer)
	if err != nil {
		return nil, nil, fmt.Errorf("prove a key of the type %s: %w", keyType, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), proof, nil
}

func generate(keyType string) (crypto.Signer, error) {
	switch keyType {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("there are no keys of the keyType %q: say RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519", keyType)
}

// cleanChain returns a chain of certificates without headers and text in between.
func cleanChain(text string) []byte {
	var chain bytes.Buffer
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		chain.Write(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: block.Bytes}))
	}
	return chain.Bytes()
}
