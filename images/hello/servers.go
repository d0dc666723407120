package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"path"
	"strings"
	"time"
)

// lookEvery is the interval of the check whether the TCP listener must be open.
const lookEvery = 20 * time.Millisecond

// answer returns the HTTP handler: the last element of a path is the name of a check, and "/" always passes.
func answer(h health, message, hostname string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.Trim(path.Base(r.URL.Path), "/.")
		caller := fmt.Sprintf("%s %s host=%q agent=%q accept=%q x-probe=%q", scheme(r), r.URL, r.Host,
			r.UserAgent(), r.Header.Get("Accept"), r.Header.Get("X-Probe"))
		v, err := h.check(r.Context(), name, caller)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case v.redirect != "":
			http.Redirect(w, r, v.redirect, http.StatusFound)
		case !v.ok:
			http.Error(w, v.text, http.StatusServiceUnavailable)
		default:
			fmt.Fprintf(w, "%s (%s, %q)\n", message, hostname, r.URL.Path) //nolint:gosec // plain text, quoted
		}
	})
}

func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// answerGRPC implements grpc.health.v1.Health/Check, the only method of gRPC's health service that probes call. Each
// service is a check. It does not use the gRPC library, which would be large for two messages of one field each.
func answerGRPC(h health) http.Handler {
	const found, serving, notServing = "0", 1, 2
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		fail := func(code string, text string) {
			w.Header().Set("Grpc-Status", code)
			w.Header().Set("Grpc-Message", text)
		}
		if r.URL.Path != "/grpc.health.v1.Health/Check" {
			fail("12", "the only method is grpc.health.v1.Health/Check") // Unimplemented
			return
		}
		service, err := readService(r.Body)
		if err != nil {
			fail("3", err.Error()) // InvalidArgument
			return
		}
		v, err := h.check(r.Context(), service, fmt.Sprintf("grpc service=%q agent=%q", service, r.UserAgent()))
		if err != nil {
			fail("13", err.Error()) // Internal
			return
		}
		status := byte(serving)
		if !v.ok {
			status = notServing
		}
		if _, err := w.Write([]byte{0, 0, 0, 0, 2, 1 << 3, status}); err == nil { // not compressed, 2 bytes, field 1
			w.Header().Set("Grpc-Status", found)
		}
	})
}

// readService returns the only field of grpc.health.v1.HealthCheckRequest: service, a string.
func readService(body io.Reader) (string, error) {
	const longest = 1 << 10
	var head struct {
		Compressed uint8
		Length     uint32
	}
	if err := binary.Read(body, binary.BigEndian, &head); err != nil {
		return "", fmt.Errorf("read the head of a message: %w", err)
	}
	if head.Compressed != 0 || head.Length > longest {
		return "", fmt.Errorf("a message of %d bytes, compressed %d: want up to %d and 0", head.Length, head.Compressed, longest)
	}
	message := make([]byte, head.Length)
	if _, err := io.ReadFull(body, message); err != nil || len(message) == 0 {
		return "", err
	}
	const service = 1<<3 | 2 // field 1, length-delimited
	length, size := binary.Uvarint(message[1:])
	if message[0] != service || size <= 0 || length > longest || int(length) != len(message)-1-size {
		return "", errors.New("the message has a field other than service")
	}
	return string(message[1+size:]), nil
}

// selfSigned returns a self-signed certificate for an arbitrary name.
func selfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"hello.invalid"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}},
	}, nil
}

// accept listens on a TCP address while the check "tcp" passes, and closes all connections. It ends with the context.
func accept(ctx context.Context, addr string, h health) error {
	var listener net.Listener
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		v, _, err := h.look("tcp")
		switch {
		case err != nil:
			return err
		case v.ok && listener == nil:
			if listener, err = net.Listen("tcp", addr); err != nil {
				return err
			}
			go closeEach(listener, h)
		case !v.ok && listener != nil:
			if err := listener.Close(); err != nil {
				return err
			}
			listener = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// closeEach records connections as calls of the check "tcp" and closes them. It ends when the listener is closed.
func closeEach(listener net.Listener, h health) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = h.note("tcp", "tcp") // a missing record fails the caller's count
		_ = conn.Close()         // nothing was written
	}
}
