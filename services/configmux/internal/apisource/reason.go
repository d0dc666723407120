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

// maxReason bounds the text of an error in bytes, because it may quote the server.
const maxReason = 512

// Reason returns why a request failed and the remedy. Its text is the same for each occurrence: it contains no time, no
// local port, and no address except the source's target.
func Reason(err error) string {
	text := answerReason(err)
	if text == "" {
		text = wayReason(err)
	}
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// answerReason returns why the API server refused; empty if it did not answer.
func answerReason(err error) string {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return ""
	}
	code, message := status.Status().Code, status.Status().Message
	switch {
	case apierrors.IsUnauthorized(err):
		return "it does not authenticate this node (401): check the client certificate or the token in the kubeconfig, and its expiration"
	case apierrors.IsForbidden(err):
		return fmt.Sprintf(
			"it does not allow it (403): %s: let the user of the kubeconfig be system:node:NAME of the group system:nodes, with the name of this node, or give it the right",
			message,
		)
	case apierrors.IsTooManyRequests(err):
		return "it is overloaded (429)"
	case code == 0:
		return message
	default:
		return fmt.Sprintf("it answers with the status %d: %s", code, message)
	}
}

// wayReason returns why there was no answer.
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
		return fmt.Sprintf("there is no host %s: check its name in the DNS, and the server in the kubeconfig", lookup.Name)
	case errors.As(err, &lookup):
		return fmt.Sprintf("the name %s cannot be looked up: check this machine's DNS", lookup.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer in time: check that it runs and is reachable"
	case errors.As(err, &expired) && expired.Reason == x509.Expired && expired.Cert != nil:
		return fmt.Sprintf("its certificate is valid only from %s to %s: renew it, or set this machine's clock",
			expired.Cert.NotBefore.UTC().Format(time.RFC3339), expired.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &authority):
		return "its certificate is not signed by an authority that the kubeconfig trusts: check certificate-authority in the kubeconfig"
	case errors.As(err, &name):
		return fmt.Sprintf(
			"its certificate is not valid for the name %s: check the server in the kubeconfig, or give it a certificate for that name",
			name.Host,
		)
	case errors.As(err, &record):
		return "the server there does not use TLS: check the server in the kubeconfig"
	case errors.As(err, &operation) && operation.Err != nil:
		return operation.Op + ": " + operation.Err.Error() + ": check that it runs and is reachable"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection was closed without an answer: check that it runs"
	case errors.As(err, &request):
		return request.Err.Error() + ": check its log, and the network"
	default:
		return err.Error() + ": check its log, and the network"
	}
}
