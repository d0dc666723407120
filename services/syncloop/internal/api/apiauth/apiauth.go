// Package apiauth authenticates and authorizes requests to the node's HTTP API. A user is authenticated by a client
// certificate that is signed by an authority of the node's configuration, by a bearer token that the API server accepts
// (TokenReview), or as anonymous if the configuration allows that. A request is authorized by the API server
// (SubjectAccessReview) as an access to this Node.
//
// Answers of the API server are cached for the configured time, in a bounded space, so that a recent user is let in
// while the API server is away. If the API server hangs, a request fails within Timeout. Made-up tokens neither evict
// valid ones from the cache, nor do valid ones wait for their reviews.
package apiauth

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/httpserve"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// Timeout bounds the authentication and authorization of a request. It is the kubelet's timeout for one call of the API
// server.
const Timeout = 10 * time.Second

// User is the user who sent a request.
type User struct {
	// Name is never empty. UID and Extra are set for some users by the API server; Groups are always set.
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// Groups and a user that Kubernetes assigns to users.
const (
	authenticatedGroup   = "system:authenticated"
	unauthenticatedGroup = "system:unauthenticated"
	anonymousUser        = "system:anonymous"
)

// Config configures a Guard.
type Config struct {
	// NodeName is the name of the Node that requests access.
	NodeName string
	// ClientCAs returns the authorities whose client certificates are accepted; false if there are none yet. Nil accepts
	// no client certificates.
	ClientCAs func() (*x509.CertPool, bool)
	// Tokens is the client of authentication/v1; nil accepts no tokens.
	Tokens rest.Interface
	// TokenTTL is how long the answer for a token is cached.
	TokenTTL time.Duration
	// Anonymous treats a request without credentials as system:anonymous.
	Anonymous bool
	// Access is the client of authorization/v1; nil allows every authenticated user everything.
	Access rest.Interface
	// AllowedTTL and DeniedTTL are how long an answer about an access is cached.
	AllowedTTL, DeniedTTL time.Duration
	// Clock ages answers and certificates.
	Clock  clock.PassiveClock
	Logger *slog.Logger
}

// Guard authenticates and authorizes requests.
type Guard struct {
	cfg      Config
	tokens   *kept[tokenAnswer]
	accesses *kept[bool]
}

// New returns a Guard with an empty cache. Process is the parent context of calls to the API server, because one call
// serves all requests that wait for it.
func New(process context.Context, cfg Config) *Guard {
	return &Guard{cfg: cfg, tokens: newKept[tokenAnswer](process, cfg.Clock), accesses: newKept[bool](process, cfg.Clock)}
}

// userKey is the context key of a request's user.
type userKey struct{}

// UserOf returns the user of a request, in a handler that a Guard protects.
func UserOf(ctx context.Context) User {
	user, _ := ctx.Value(userKey{}).(User)
	return user
}

// Protect wraps next with authentication and authorization. It answers 401 to an unknown user, 403 to a forbidden one,
// and 500 if the API server could not be asked. Subresources are those of the Node: a user is allowed if it may access
// one of them with the verb of the request's method.
func (g *Guard) Protect(next http.Handler, subresources ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), Timeout)
		user, err := g.authenticate(ctx, r)
		if err != nil {
			cancel()
			g.cfg.Logger.InfoContext(ctx, "a request to the HTTP API is rejected because its user is unknown", telemetry.KeyError, err, "from", r.RemoteAddr, "path", pathOf(r))
			http.Error(w, "Unauthorized: "+publicReason(err), http.StatusUnauthorized)
			return
		}
		allowed, err := g.authorize(ctx, user, verb(r.Method), subresources)
		cancel()
		about := fmt.Sprintf("(user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Name, verb(r.Method), subresources)
		switch {
		case err != nil:
			g.cfg.Logger.WarnContext(ctx, "a request to the HTTP API is rejected because its authorization could not be checked", telemetry.KeyError, err, "user", user.Name, "path", pathOf(r))
			http.Error(w, "Authorization error "+about+": "+publicReason(err), http.StatusInternalServerError)
		case !allowed:
			g.cfg.Logger.DebugContext(ctx, "a request to the HTTP API is forbidden", "user", user.Name, "path", pathOf(r))
			http.Error(w, "Forbidden "+about, http.StatusForbidden)
		default:
			if user.Name != anonymousUser {
				httpserve.LetIn(r.Context())
			}
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
		}
	})
}

// pathOf returns the path of a request for a log, without the query, which may contain commands and secrets.
func pathOf(r *http.Request) string { return strings.ToValidUTF8(r.URL.Path, "?") }

// verb returns the Kubernetes verb of a method; empty for an unknown method.
func verb(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	default:
		return ""
	}
}
