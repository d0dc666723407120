package httpsource

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// leastSecret is the minimum length of a secret in bytes. Shorter texts occur in any sentence.
	leastSecret = 4
	// maxReason bounds the text of an error in bytes, because it may quote the server.
	maxReason = 512
	// hidden replaces a secret.
	hidden = "…"
)

// streamID matches the part of an HTTP/2 error that differs in each request.
var streamID = regexp.MustCompile(`(?:stream ID |LastStreamID=)\d+[;,] `)

// shown returns a URL without its user, password, query and fragment.
func shown(at *url.URL) string {
	plain := url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path, RawPath: at.RawPath}
	text := plain.String()
	if at.RawQuery != "" {
		text += "?" + hidden
	}
	return text
}

// secretsOf returns a replacer that removes the secrets of an address and of headers from a text. A server may echo
// them, and an error may quote that.
func secretsOf(at *url.URL, header http.Header) *strings.Replacer {
	texts := []string{at.RawQuery}
	for _, values := range at.Query() {
		texts = append(texts, values...)
	}
	if at.User != nil {
		password, _ := at.User.Password()
		both := at.User.Username() + ":" + password
		texts = append(texts, at.User.String(), at.User.Username(), password, base64.StdEncoding.EncodeToString([]byte(both)))
	}
	for _, values := range header {
		for _, value := range values {
			texts = append(append(texts, value), strings.Fields(value)...)
		}
	}
	texts = slices.DeleteFunc(texts, func(text string) bool { return len(text) < leastSecret })
	// The longest comes first, because it may contain others.
	slices.SortFunc(texts, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(texts))
	for _, text := range texts {
		pairs = append(pairs, text, hidden)
	}
	return strings.NewReplacer(pairs...)
}

// scrub removes the secrets from a text that may quote the server.
func (c *client) scrub(text string) string { return c.secrets.Replace(text) }

// failed returns the error of a failed request to an address.
func (c *client) failed(at *url.URL, err error) error {
	text := c.scrub(c.reason(err))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + hidden
	}
	if !strings.EqualFold(at.Host, c.at.Host) {
		text = "redirected to " + at.Host + ": " + text
	}
	return errors.New(text)
}

// reason returns why a request failed. Its text is the same for each occurrence: it contains no time and no local port.
func (c *client) reason(err error) string {
	var timeout net.Error
	var certificate x509.CertificateInvalidError
	var lookup *net.DNSError
	var operation *net.OpError
	switch {
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return fmt.Sprintf("there is no host %s: check its name in the DNS", lookup.Name)
	case errors.As(err, &lookup):
		return fmt.Sprintf("the name %s cannot be looked up: check this machine's DNS", lookup.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("there is no complete answer within %s: check that the server runs and is reachable", c.timeout)
	case errors.As(err, &certificate) && certificate.Reason == x509.Expired && certificate.Cert != nil:
		return fmt.Sprintf("its certificate is valid only from %s to %s: renew it, or set this machine's clock",
			certificate.Cert.NotBefore.UTC().Format(time.RFC3339), certificate.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &operation) && operation.Err != nil:
		return operation.Op + ": " + operation.Err.Error() + ": check the server and the network"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the answer is cut off: check the server"
	case errors.Is(err, io.EOF):
		return "the connection was closed without an answer: check the server"
	default:
		return streamID.ReplaceAllString(err.Error(), "")
	}
}
