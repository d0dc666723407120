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

// maxHeader is how much of an answer's header is read, in bytes: more than any server sends that means well.
const maxHeader = 1 << 20

// newTransport makes the connections of HTTP probes. Pods serve with certificates of their own and are asked by address, so there
// is no name to check a certificate against. A connection serves one call: the next one shall see whether the server still
// takes connections.
func newTransport() *http.Transport {
	return &http.Transport{
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		ForceAttemptHTTP2:      true,                                  // over TLS, where the server offers it
		DisableKeepAlives:      true,
		DisableCompression:     true, // no Accept-Encoding
		Proxy:                  nil,  // the node's is not the pod's
		DialContext:            probe.ProbeDialer().DialContext,
		MaxResponseHeaderBytes: maxHeader,
	}
}

// httpGet asks for an address. What redirects is followed on the same host.
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
	defer func() { _ = response.Body.Close() }() // the answer is known by then
	body, err := io.ReadAll(io.LimitReader(response.Body, maxOutput))
	if err != nil {
		return unknown(errors.New(plain(err)))
	}
	switch code := response.StatusCode; {
	case code < http.StatusOK || code >= http.StatusBadRequest:
		// The body may have what is nobody's business; the kubelet leaves it out, too.
		return failure(fmt.Sprintf("HTTP probe failed with statuscode: %d", code))
	case code >= http.StatusMultipleChoices:
		return Answer{Outcome: Success, Warning: true, Output: cut("Probe terminated redirects, Response body: " + string(body))}
	}
	return success(string(body))
}

// request makes the request of a probe, with what it leaves out.
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
	own := slices.ContainsFunc(get.HTTPHeaders, func(h v1.HTTPHeader) bool { return http.CanonicalHeaderKey(h.Name) == "User-Agent" })
	if !own {
		request.Header.Set("User-Agent", c.userAgent)
	}
	return request.WithContext(ctx), nil
}

// plain is what an error of the network says, without the port at this end: that is another one each time.
func plain(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Source != nil {
		return strings.ReplaceAll(err.Error(), op.Source.String()+"->", "")
	}
	return err.Error()
}
