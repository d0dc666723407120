package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// patience is the time limit for the header of a request.
const patience = 5 * time.Second

// serve answers on every requested address, and prints a line each interval, until the context ends.
func serve(ctx context.Context, opts options, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := health{dir: opts.dir, from: time.Now().Add(opts.after)}
	failed := make(chan error, 4) // each server ends once
	addresses, err := listen(ctx, opts, h, failed)
	if err != nil {
		fmt.Fprintf(stderr, "hello: %v\n", err)
		return 1
	}
	ticker := time.NewTicker(opts.every)
	defer ticker.Stop()
	fmt.Fprintf(stdout, "%s: serving on %s\n", opts.message, strings.Join(addresses, ", "))
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			fmt.Fprintln(stdout, "bye")
			return 0
		case err := <-failed:
			if !errors.Is(err, http.ErrServerClosed) {
				fmt.Fprintf(stderr, "hello: %v\n", err)
			}
			return 1
		case <-ticker.C:
			fmt.Fprintf(stdout, "%s: line %d\n", opts.message, n)
		}
	}
}

// listen starts the servers, each of which sends its error to failed, and returns their addresses.
func listen(ctx context.Context, opts options, h health, failed chan<- error) ([]string, error) {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	insecure := new(http.Protocols)
	insecure.SetUnencryptedHTTP2(true) // gRPC uses it
	var certificate *tls.Config
	if opts.https != "" {
		if certificate, err = selfSigned(); err != nil {
			return nil, err
		}
	}
	web := page{file: opts.page, password: opts.password}.before(answer(h, opts.message, hostname))
	var addresses []string
	for _, s := range []struct {
		addr, title string
		server      *http.Server
	}{
		{opts.addr, "", &http.Server{Handler: web, ReadHeaderTimeout: patience}},
		{opts.https, "https ", &http.Server{Handler: web, ReadHeaderTimeout: patience, TLSConfig: certificate}},
		{opts.grpc, "grpc ", &http.Server{Handler: answerGRPC(h), ReadHeaderTimeout: patience, Protocols: insecure}},
	} {
		if s.addr == "" {
			continue
		}
		listener, err := net.Listen("tcp", s.addr)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, s.title+listener.Addr().String())
		if s.server.TLSConfig != nil {
			go func() { failed <- s.server.ServeTLS(listener, "", "") }()
		} else {
			go func() { failed <- s.server.Serve(listener) }()
		}
	}
	if opts.tcp != "" {
		addresses = append(addresses, "tcp "+opts.tcp)
		go func() {
			if err := accept(ctx, opts.tcp, h); err != nil {
				failed <- err
			}
		}()
	}
	return addresses, nil
}
