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
	// leastSecret is how long a text is, in bytes, that is taken for a secret. What is shorter stands in any sentence.
	leastSecret = 4
	// maxReason bounds the text of an error, in bytes: it may quote the server.
	maxReason = 512
	// hidden stands for what is not shown.
	hidden = "…"
)

// streamID is the part of an error of HTTP/2 that is another with each request.
var streamID = regexp.MustCompile(`(?:stream ID |LastStreamID=)\d+[;,] `)

// shown is a URL without its user, password, query and fragment.
func shown(at *url.URL) string {
	plain := url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path, RawPath: at.RawPath}
	text := plain.String()
	if at.RawQuery != "" {
		text += "?" + hidden
	}
	return text
}

// secretsOf returns what takes the secrets of an address and of headers out of a text. A server may send back what it was
// sent, and an error quote that.
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
	// The longest first: it may have others in it.
	slices.SortFunc(texts, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	pairs := make([]string, 0, 2*len(texts))
	for _, text := range texts {
		pairs = append(pairs, text, hidden)
	}
	return strings.NewReplacer(pairs...)
}

// scrub takes the secrets out of a text that may quote the server.
func (c *client) scrub(text string) string { return c.secrets.Replace(text) }

// failed returns the error of a request that failed at an address.
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

// reason says why a request failed, in words that do not change from one request to the next: no time, no port of this
// side.
func (c *client) reason(err error) string {
	var timeout net.Error
	var certificate x509.CertificateInvalidError
	var lookup *net.DNSError
	var operation *net.OpError
	switch {
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return fmt.Sprintf("there is no host %s: see to its name in the DNS", lookup.Name)
	case errors.As(err, &lookup):
		return fmt.Sprintf("the name %s cannot be looked up: see to this machine's DNS", lookup.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("there is no whole answer within %s: see that the server runs and can be reached", c.timeout)
	case errors.As(err, &certificate) && certificate.Reason == x509.Expired && certificate.Cert != nil:
		return fmt.Sprintf("its certificate is valid only from %s to %s: renew it, or set this machine's clock",
			certificate.Cert.NotBefore.UTC().Format(time.RFC3339), certificate.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &operation) && operation.Err != nil:
		return operation.Op + ": " + operation.Err.Error() + ": see to the server and the way to it"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the answer is cut off: see to the server"
	case errors.Is(err, io.EOF):
		return "the connection is closed without an answer: see to the server"
	default:
		return streamID.ReplaceAllString(err.Error(), "")
	}
}
