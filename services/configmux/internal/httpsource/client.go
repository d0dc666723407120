package httpsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// answerTimeout bounds a complete response, including redirects.
	answerTimeout = 10 * time.Second
	// maxAnswer bounds the size of a response, in bytes, uncompressed.
	maxAnswer = 10 << 20
	// maxRedirects is the maximum number of redirects.
	maxRedirects = 10
)

// client requests pods from one server.
type client struct {
	at        *url.URL
	header    http.Header
	transport http.RoundTripper
	secrets   *strings.Replacer
	// timeout is answerTimeout, except in tests.
	timeout time.Duration
}

func newClient(at *url.URL, header map[string][]string, transport http.RoundTripper) *client {
	c := &client{at: at, header: http.Header{}, transport: transport, timeout: answerTimeout}
	for name, values := range header {
		for _, value := range values {
			c.header.Add(name, value)
		}
	}
	c.secrets = secretsOf(at, c.header)
	return c
}

// NewTransport returns the transport for requests: direct, or through the proxy of the environment.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy: func(request *http.Request) (*url.URL, error) {
			proxy, err := http.ProxyFromEnvironment(request)
			if err != nil {
				// Its error quotes the address, which may contain a password.
				return nil, errors.New("HTTP_PROXY or HTTPS_PROXY of the environment is not an address: correct it and restart")
			}
			return proxy, nil
		},
		ForceAttemptHTTP2: true,
		IdleConnTimeout:   idleTimeout,
	}
}

// idleTimeout is how long an idle connection is kept.
const idleTimeout = 90 * time.Second

// get returns the body of the server's response, empty for an empty body. Its error contains no secrets, and is the
// same for each occurrence of the same problem.
func (c *client) get(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	at, trusted := c.at, true
	for range maxRedirects + 1 {
		response, err := c.ask(ctx, at, trusted)
		if err != nil {
			return nil, c.failed(at, err)
		}
		if !isRedirect(response) {
			data, err := read(response)
			if err != nil {
				return nil, c.failed(at, err)
			}
			return data, nil
		}
		next, err := at.Parse(response.Header.Get("Location"))
		_ = response.Body.Close() // the body is not needed
		if err != nil || next.Host == "" || (next.Scheme != "http" && next.Scheme != "https") {
			return nil, c.failed(
				at,
				errors.New("it redirects to an address that is not an http:// or https:// URL: correct the server"),
			)
		}
		// After a redirect to another server, no further server is trusted, even if a redirect leads back.
		trusted = trusted && isSame(c.at, next)
		at = next
	}
	return nil, c.failed(
		at,
		fmt.Errorf(
			"it redirects more than %d times: correct the server, or set staticPodURL to the final address",
			maxRedirects,
		),
	)
}

// ask sends one request. Only a trusted server receives the headers.
func (c *client) ask(ctx context.Context, at *url.URL, trusted bool) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, errors.New("its address is not a URL: set another staticPodURL")
	}
	if trusted {
		request.Header = c.header.Clone()
		if host := c.header.Get("Host"); host != "" {
			request.Host = host
		}
	}
	if user := at.User; user != nil && request.Header.Get("Authorization") == "" {
		password, _ := user.Password()
		request.SetBasicAuth(user.Username(), password)
	}
	return c.transport.RoundTrip(request)
}

// isSame reports whether a redirect leads to the same server with the same or a safer scheme.
func isSame(first, next *url.URL) bool {
	return strings.EqualFold(first.Host, next.Host) && (first.Scheme == next.Scheme || next.Scheme == "https")
}

// isRedirect reports whether the response is a redirect.
func isRedirect(response *http.Response) bool {
	switch response.StatusCode {
	case http.StatusMovedPermanently,
		http.StatusFound,
		http.StatusSeeOther,
		http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		return response.Header.Get("Location") != ""
	default:
		return false
	}
}

// read reads a complete response.
func read(response *http.Response) ([]byte, error) {
	defer func() { _ = response.Body.Close() }() // it was read to the end, or is not needed
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf(
			"it answers with the status %d instead of 200: correct the server, or staticPodURL and staticPodURLHeader",
			response.StatusCode,
		)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxAnswer:
		return nil, fmt.Errorf("its answer is larger than %d MiB: let it answer with fewer pods", maxAnswer>>20)
	}
	return data, nil
}
