package apisource

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxReason bounds the text of an error, in bytes: it may quote the server.
const maxReason = 512

// reason says why a request failed and what to do, in words that do not change from one request to the next: no time, no
// port of this side, and of the address nothing but what the source's target says.
func reason(err error) string {
	text := answerReason(err)
	if text == "" {
		text = wayReason(err)
	}
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// answerReason says why the API server refused; it is empty when there was no answer.
func answerReason(err error) string {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return ""
	}
	code, said := status.Status().Code, status.Status().Message
	switch {
	case apierrors.IsUnauthorized(err):
		return "it does not accept who this node says it is (401): see to the client certificate or the token in the kubeconfig, and whether it has run out"
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("it does not allow it (403): %s: let the user of the kubeconfig be system:node:NAME of the group system:nodes, with the name of this node, or give it the right", said)
	case apierrors.IsTooManyRequests(err):
		return "it has too much to do (429)"
	case code == 0:
		return said
	default:
		return fmt.Sprintf("it answers with the status %d: %s", code, said)
	}
}

// wayReason says why there was no answer.
func wayReason(err error) string {
	var timeout net.Error
	var expired x509.CertificateInvalidError
	var name x509.HostnameError
	var authority x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var lookup *net.DNSError
	var operation *net.OpError
	var request *url.Error
	switch {
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return fmt.Sprintf("there is no host %s: see to its name in the DNS, and to the server in the kubeconfig", lookup.Name)
	case errors.As(err, &lookup):
		return fmt.Sprintf("the name %s cannot be looked up: see to this machine's DNS", lookup.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer in time: see that it runs and can be reached"
	case errors.As(err, &expired) && expired.Reason == x509.Expired && expired.Cert != nil:
		return fmt.Sprintf("its certificate is valid only from %s to %s: renew it, or set this machine's clock",
			expired.Cert.NotBefore.UTC().Format(time.RFC3339), expired.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &authority):
		return "its certificate is signed by none that the kubeconfig trusts: see to certificate-authority in the kubeconfig"
	case errors.As(err, &name):
		return fmt.Sprintf("its certificate is not for the name %s: see to the server in the kubeconfig, or give it a certificate for that name", name.Host)
	case errors.As(err, &record):
		return "what listens there does not speak TLS: see to the server in the kubeconfig"
	case errors.As(err, &operation) && operation.Err != nil:
		return operation.Op + ": " + operation.Err.Error() + ": see that it runs and can be reached"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection is closed without an answer: see that it runs"
	case errors.As(err, &request):
		return request.Err.Error() + ": see to its log, and to the way to it"
	default:
		return err.Error() + ": see to its log, and to the way to it"
	}
}
