// Package apiauth says who asks the node's HTTP API, and whether they may: by a client certificate that an authority of the
// node's configuration has signed, by a bearer token that the API server knows (TokenReview), or as nobody, where the configuration
// takes nobody; and by the API server's word (SubjectAccessReview) about what is asked of this Node.
//
// What the API server has answered is kept as long as the configuration says, in a space that does not grow, so that it need not
// be there for who has just asked. One that hangs fails a request within Timeout.
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

	"github.com/quartet-node/quartet/internal/telemetry"
)

// Timeout bounds what it takes to know who asks and whether they may. It is the kubelet's for one call of the API server.
const Timeout = 10 * time.Second

// User is who asks.
type User struct {
	// Name is empty in no user. UID and Extra are what an API server says of some, and Groups are always there.
	Name, UID string
	Groups    []string
	Extra     map[string][]string
}

// Groups and a user that Kubernetes gives who asks.
const (
	authenticatedGroup   = "system:authenticated"
	unauthenticatedGroup = "system:unauthenticated"
	anonymousUser        = "system:anonymous"
)

// Config is what is trusted, and how far.
type Config struct {
	// NodeName is the name of the Node that is asked about.
	NodeName string
	// ClientCAs returns those whose client certificates are taken; false when there are none yet. Nil takes none.
	ClientCAs func() (*x509.CertPool, bool)
	// Tokens is the API server's authentication/v1; nil takes no tokens.
	Tokens rest.Interface
	// TokenTTL is how long an answer about a token is kept.
	TokenTTL time.Duration
	// Anonymous takes who shows nothing as system:anonymous.
	Anonymous bool
	// Access is the API server's authorization/v1; nil lets everybody who is known do everything.
	Access rest.Interface
	// AllowedTTL and DeniedTTL are how long an answer about an access is kept.
	AllowedTTL, DeniedTTL time.Duration
	// Clock ages answers and certificates.
	Clock  clock.PassiveClock
	Logger *slog.Logger
}

// Guard lets those ask who may.
type Guard struct {
	cfg      Config
	tokens   *kept[tokenAnswer]
	accesses *kept[bool]
}

// New returns a guard that has asked nothing yet. Process is what calls of the API server live under: one serves all who wait for it.
func New(process context.Context, cfg Config) *Guard {
	return &Guard{cfg: cfg, tokens: newKept[tokenAnswer](process, cfg.Clock), accesses: newKept[bool](process, cfg.Clock)}
}

// userKey is where a request's context has its user.
type userKey struct{}

// UserOf returns who asks, in a handler that a Guard protects.
func UserOf(ctx context.Context) User {
	user, _ := ctx.Value(userKey{}).(User)
	return user
}

// Protect answers 401 to who is not known, 403 to who may not, and 500 when that cannot be known; all others next answers.
// Subresources are those of the Node: whoever may do to one of them what the method says may ask.
func (g *Guard) Protect(next http.Handler, subresources ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), Timeout)
		user, err := g.authenticate(ctx, r)
		if err != nil {
			cancel()
			g.cfg.Logger.InfoContext(ctx, "a request to the HTTP API is refused: it is not known who asks", telemetry.KeyError, err, "from", r.RemoteAddr, "path", pathOf(r))
			http.Error(w, "Unauthorized: "+publicReason(err), http.StatusUnauthorized)
			return
		}
		allowed, err := g.authorize(ctx, user, verb(r.Method), subresources)
		cancel()
		about := fmt.Sprintf("(user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Name, verb(r.Method), subresources)
		switch {
		case err != nil:
			g.cfg.Logger.WarnContext(ctx, "a request to the HTTP API is refused: it could not be asked whether it is allowed", telemetry.KeyError, err, "user", user.Name, "path", pathOf(r))
			http.Error(w, "Authorization error "+about+": "+publicReason(err), http.StatusInternalServerError)
		case !allowed:
			g.cfg.Logger.DebugContext(ctx, "a request to the HTTP API is forbidden", "user", user.Name, "path", pathOf(r))
			http.Error(w, "Forbidden "+about, http.StatusForbidden)
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
		}
	})
}

// pathOf is the path of a request for a log: without what comes after it, where commands and secrets may be.
func pathOf(r *http.Request) string { return strings.ToValidUTF8(r.URL.Path, "?") }

// verb is what Kubernetes calls a method; empty for one that it does not know.
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
