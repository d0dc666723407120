package apiauth

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/quartet-node/quartet/internal/httpserve"
)

// reason is an error whose text may be sent to the client: it contains nothing of the machine, of the API server or of
// a credential.
type reason struct {
	text  string
	cause error
}

func (r *reason) Error() string {
	if r.cause == nil {
		return r.text
	}
	return r.text + ": " + r.cause.Error()
}

func (r *reason) Unwrap() error { return r.cause }

// publicReason returns the part of an error that may be sent to the client.
func publicReason(err error) string {
	var r *reason
	if errors.As(err, &r) {
		return r.text
	}
	return "see the log of syncloop on the node"
}

// maxToken bounds the length of a token. Tokens of service accounts have about a thousand bytes, other tokens some
// thousand.
const maxToken = 64 << 10

// credentialID is the key in User.Extra under which Kubernetes identifies the credential.
const credentialID = "authentication.kubernetes.io/credential-id"

// authenticate returns the user of a request: of its client certificate, else of its bearer token, else anonymous if
// that is allowed. A wrong credential is an error, never anonymous.
func (g *Guard) authenticate(ctx context.Context, r *http.Request) (User, error) {
	var problems []error
	user, shown, err := g.certified(r)
	switch {
	case err != nil:
		problems = append(problems, err)
	case shown:
		return known(user), nil
	}
	user, shown, err = g.tokenHolder(ctx, r)
	switch {
	case err != nil:
		problems = append(problems, err)
	case shown:
		return known(user), nil
	}
	if len(problems) > 0 {
		return User{}, errors.Join(problems...)
	}
	if g.cfg.Anonymous {
		return User{Name: anonymousUser, Groups: []string{unauthenticatedGroup}}, nil
	}
	return User{}, &reason{text: "show a client certificate or a bearer token"}
}

// known adds the group of all authenticated users.
func known(user User) User {
	if !slices.Contains(user.Groups, authenticatedGroup) {
		user.Groups = append(slices.Clone(user.Groups), authenticatedGroup)
	}
	return user
}

// certified returns the user of a request's client certificate; false if there is no certificate or none is accepted.
func (g *Guard) certified(r *http.Request) (User, bool, error) {
	if g.cfg.ClientCAs == nil || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, false, nil
	}
	roots, ok := g.cfg.ClientCAs()
	if !ok {
		return User{}, false, &reason{text: "the node cannot read the authorities of client certificates"}
	}
	leaf := r.TLS.PeerCertificates[0]
	intermediates := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: g.cfg.Clock.Now(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return User{}, false, &reason{
			text:  "the client certificate is not accepted",
			cause: fmt.Errorf("%q, valid from %s to %s: %w", leaf.Subject, leaf.NotBefore, leaf.NotAfter, err),
		}
	}
	if leaf.Subject.CommonName == "" {
		return User{}, false, &reason{text: "the client certificate names no user"}
	}
	sum := sha256.Sum256(leaf.Raw)
	return User{
		Name: leaf.Subject.CommonName, UID: uidOf(leaf), Groups: leaf.Subject.Organization,
		Extra: map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}, true, nil
}

// uidOf returns the user's UID from a certificate, which Kubernetes stores in the attribute 1.3.6.1.4.1.57683.2; empty
// without one.
func uidOf(leaf *x509.Certificate) string {
	uidOID := asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
	for _, name := range leaf.Subject.Names {
		if uid, ok := name.Value.(string); ok && name.Type.Equal(uidOID) {
			return uid
		}
	}
	return ""
}

// tokenAnswer is the API server's answer for a token.
type tokenAnswer struct {
	user  User
	valid bool
}

// tokenHolder returns the user of a request's bearer token; false without one.
func (g *Guard) tokenHolder(ctx context.Context, r *http.Request) (User, bool, error) {
	token, ok := bearerToken(r.Header)
	switch {
	case !ok:
		return User{}, false, nil
	case g.cfg.Tokens == nil:
		return User{}, false, &reason{text: "tokens are not accepted"}
	case len(token) > maxToken:
		return User{}, false, &reason{text: "the token is too long"}
	}
	reviewed, err := g.tokens.get(ctx, token, httpserve.Peer(r.RemoteAddr),
		func(ctx context.Context) (answer[tokenAnswer], error) {
			value, err := g.reviewToken(ctx, token)
			return answer[tokenAnswer]{value: value, good: value.valid, wrong: !value.valid, ttl: g.cfg.TokenTTL}, err
		})
	switch {
	case err != nil:
		return User{}, false, &reason{text: "the API server, which authenticates tokens, has not answered", cause: err}
	case !reviewed.valid:
		return User{}, false, &reason{text: "the API server rejects the token"}
	}
	return reviewed.user, true, nil
}

// bearerToken returns the token of an Authorization header; false if there is none.
func bearerToken(header http.Header) (string, bool) {
	scheme, token, ok := strings.Cut(strings.TrimSpace(header.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "bearer") && token != ""
}

// reviewToken asks the API server for the user of a token. The error never contains the token.
func (g *Guard) reviewToken(ctx context.Context, token string) (tokenAnswer, error) {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	var answer authenticationv1.TokenReview
	if err := g.cfg.Tokens.Post().Resource("tokenreviews").Body(review).MaxRetries(maxRetries).Do(ctx).Into(&answer); err != nil {
		return tokenAnswer{}, fmt.Errorf("review the token: %w", err)
	}
	if !answer.Status.Authenticated || answer.Status.User.Username == "" {
		return tokenAnswer{}, nil
	}
	reviewed := answer.Status.User
	extra := make(map[string][]string, len(reviewed.Extra))
	user := User{Name: reviewed.Username, UID: reviewed.UID, Groups: reviewed.Groups, Extra: extra}
	for key, values := range reviewed.Extra {
		user.Extra[key] = values
	}
	return tokenAnswer{user: user, valid: true}, nil
}
