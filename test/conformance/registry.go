package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// pulledFrom is the registry in the names of the images. inside.sh maps it to the loopback interface.
	pulledFrom = "registry.k8s.io"
	// registryAddress is the address at which a runtime looks for that registry.
	registryAddress = "127.0.0.1:443"
	// certificateLife is longer than the longest run.
	certificateLife = 24 * time.Hour
	// headerTimeout bounds how long a client may take to send its request.
	headerTimeout = 10 * time.Second

	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// descriptor describes a blob in a manifest.
type descriptor struct {
	MediaType string `json:"mediaType"`
	Size      int    `json:"size"`
	Digest    string `json:"digest"`
}

// registry serves the images of a run, for the specs that pull an image although it is there. It serves names, tags and
// digests and accepts no push.
type registry struct {
	// manifests has manifests by digest and by NAME:TAG.
	manifests map[string][]byte
	blobs     map[string][]byte
}

// serveImages serves the images of archives under the name of their registry until the context ends. It returns the
// file with the certificate that clients have to trust.
func serveImages(ctx context.Context, dir string, archives []string) (string, error) {
	r := registry{manifests: map[string][]byte{}, blobs: map[string][]byte{}}
	for _, archive := range archives {
		if err := r.add(archive); err != nil {
			return "", fmt.Errorf("reading the image %s: %w", archive, err)
		}
	}
	certificate, err := selfSigned(pulledFrom)
	if err != nil {
		return "", fmt.Errorf("making the certificate of the registry: %w", err)
	}
	trust := filepath.Join(dir, "registry.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
	if err := os.WriteFile(trust, block, 0o600); err != nil {
		return "", err
	}
	listener, err := tls.Listen("tcp", registryAddress, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: headerTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // ends with the context
	return trust, nil
}

// selfSigned returns a certificate of a server that is valid for certificateLife.
func selfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certificateLife), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// add reads an archive of docker save with one image.
func (r registry) add(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	files := map[string][]byte{}
	for archive := tar.NewReader(file); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			return err
		}
	}
	var images []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &images); err != nil {
		return err
	}
	for _, image := range images {
		manifest := struct {
			SchemaVersion int          `json:"schemaVersion"`
			MediaType     string       `json:"mediaType"`
			Config        descriptor   `json:"config"`
			Layers        []descriptor `json:"layers"`
		}{SchemaVersion: 2, MediaType: manifestType, Config: r.blob(files[image.Config], configType)}
		for _, layer := range image.Layers {
			manifest.Layers = append(manifest.Layers, r.blob(files[layer], layerType))
		}
		content, err := json.Marshal(manifest)
		if err != nil {
			return err
		}
		r.manifests[digest(content)] = content
		for _, tag := range image.RepoTags {
			r.manifests[strings.TrimPrefix(tag, pulledFrom+"/")] = content
		}
	}
	return nil
}

// blob stores a content and returns its descriptor.
func (r registry) blob(content []byte, kind string) descriptor {
	d := descriptor{MediaType: kind, Size: len(content), Digest: digest(content)}
	r.blobs[d.Digest] = content
	return d
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ServeHTTP answers /v2/, /v2/NAME/manifests/TAG-OR-DIGEST and /v2/NAME/blobs/DIGEST.
func (r registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	if path == "" {
		return
	}
	kind, content, found := "application/octet-stream", []byte(nil), false
	if name, reference, ok := strings.Cut(path, "/manifests/"); ok {
		kind = manifestType
		if content, found = r.manifests[reference]; !found {
			content, found = r.manifests[name+":"+reference]
		}
		w.Header().Set("Docker-Content-Digest", digest(content))
	} else if _, reference, ok := strings.Cut(path, "/blobs/"); ok {
		content, found = r.blobs[reference]
	}
	if !found {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", kind)
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(content))
}
