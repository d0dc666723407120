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
	// answerTimeout is how long a whole answer may take, redirects included.
	answerTimeout = 10 * time.Second
	// maxAnswer is how large an answer may be, in bytes, unpacked.
	maxAnswer = 10 << 20
	// maxRedirects is how many redirects are followed.
	maxRedirects = 10
)

// client asks one server for its pods.
type client struct {
	at        *url.URL
	header    http.Header
	transport http.RoundTripper
	secrets   *strings.Replacer
	// timeout is answerTimeout; tests have less patience.
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

// NewTransport returns what carries requests to servers: directly, or through the proxy that the environment names.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy: func(request *http.Request) (*url.URL, error) {
			proxy, err := http.ProxyFromEnvironment(request)
			if err != nil {
				// Its error quotes the address, which may have a password in it.
				return nil, errors.New("HTTP_PROXY or HTTPS_PROXY of the environment is not an address: mend it and start again")
			}
			return proxy, nil
		},
		ForceAttemptHTTP2: true,
		IdleConnTimeout:   idleTimeout,
	}
}

// idleTimeout is how long a connection is kept for the next request.
const idleTimeout = 90 * time.Second

// get returns the bytes that the server answers, none when the body is empty. Its error has no secrets in it, and is the same each time that the same
// thing is wrong.
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
		_ = response.Body.Close() // nothing of it is wanted
		if err != nil || next.Host == "" || (next.Scheme != "http" && next.Scheme != "https") {
			return nil, c.failed(at, errors.New("it redirects to what is not an http:// or https:// URL: mend the server"))
		}
		// Who has once been sent elsewhere is not trusted again, even when that leads back.
		trusted = trusted && isSame(c.at, next)
		at = next
	}
	return nil, c.failed(at, fmt.Errorf("it redirects more than %d times: mend the server, or set staticPodURL to where the pods are", maxRedirects))
}

// ask sends one request. Only a trusted server is given the headers.
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

// isSame reports whether a redirect leads to the same server, by no less safe a way.
func isSame(first, next *url.URL) bool {
	return strings.EqualFold(first.Host, next.Host) && (first.Scheme == next.Scheme || next.Scheme == "https")
}

// isRedirect reports whether the answer is elsewhere.
func isRedirect(response *http.Response) bool {
	switch response.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return response.Header.Get("Location") != ""
	default:
		return false
	}
}

// read reads a whole answer.
func read(response *http.Response) ([]byte, error) {
	defer func() { _ = response.Body.Close() }() // it was read to its end, or is not wanted
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers with the status %d and not with 200: mend the server, or set staticPodURL and staticPodURLHeader to what it wants", response.StatusCode)
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
