package probecalls

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
)

// maxHeader bounds the header of a response in bytes.
const maxHeader = 1 << 20

// newTransport returns the transport of HTTP probes. It does not verify certificates, because pods use self-signed ones
// and are addressed by IP. Each connection serves one call, because the next call should test whether the server still
// accepts connections.
func newTransport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		ForceAttemptHTTP2:      true,                                  // over TLS, where the server offers it
		DisableKeepAlives:      true,
		DisableCompression:     true, // no Accept-Encoding
		Proxy:                  nil,  // the node's proxy does not apply to pods
		DialContext:            probe.ProbeDialer().DialContext,
		MaxResponseHeaderBytes: maxHeader,
	}
}

// httpGet requests a URL. It follows redirects on the same host.
func (c *Caller) httpGet(ctx context.Context, t Target) Answer {
	request, err := c.request(ctx, t)
	if err != nil {
		return unknown(err)
	}
	client := &http.Client{Transport: c.transport, Timeout: t.timeout(), CheckRedirect: httpprobe.RedirectChecker(false)}
	response, err := client.Do(request)
	if err != nil {
		return failure(plain(err))
	}
	defer func() { _ = response.Body.Close() }() // the result is known by then
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOutput))
	if err != nil {
		return unknown(errors.New(plain(err)))
	}
	switch code := response.StatusCode; {
	case code < http.StatusOK || code >= http.StatusBadRequest:
		// As in the kubelet, the body is not included because it may be confidential.
		return failure(fmt.Sprintf("HTTP probe failed with statuscode: %d", code))
	case code >= http.StatusMultipleChoices:
		return Answer{
			Outcome: Success, Warning: true, Output: cut("Probe terminated redirects, Response body: " + string(body)),
		}
	}
	return success(string(body))
}

// request returns the request of a probe with defaults.
func (c *Caller) request(ctx context.Context, t Target) (*http.Request, error) {
	get := t.Probe.HTTPGet
	host, err := t.host(get.Host)
	if err != nil {
		return nil, err
	}
	request, err := httpprobe.NewRequestForHTTPGetAction(get, t.Container, host, "probe")
	if err != nil {
		return nil, fmt.Errorf("httpGet: %w", err)
	}
	own := slices.ContainsFunc(get.HTTPHeaders, func(h v1.HTTPHeader) bool {
		return http.CanonicalHeaderKey(h.Name) == "User-Agent"
	})
	if !own {
		request.Header.Set("User-Agent", c.userAgent)
	}
	return request.WithContext(ctx), nil
}

// plain returns the text of a network error without the local port, which always differs.
func plain(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Source != nil {
		return strings.ReplaceAll(err.Error(), op.Source.String()+"->", "")
	}
	return err.Error()
}
