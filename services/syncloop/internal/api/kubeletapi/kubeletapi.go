// Package kubeletapi serves the kubelet's HTTP API, so that clients of a kubelet work with Quartet. There are two
// servers. The authenticated one has all paths. For each path, package apiauth checks whether the user may access a
// subresource of the Node:
//
//	/pods                                the desired pods with their full status, as v1.PodList in JSON
//	/runningpods/                        the pods in the runtime, as v1.PodList in JSON
//	/healthz, /healthz/ping, log,        "ok", or 500 and a line for each check; ?verbose always prints the lines
//	syncloop
//	/metrics, /metrics/probes            the metrics of the four processes, and of the probes, in Prometheus' formats
//	/metrics/slis                        the results of the checks of /healthz
//	/stats/summary                       resource usage of the node, its pods and their containers, in JSON
//	/metrics/resource, cadvisor          resource usage as metrics
//	/configz                             the configuration without secrets
//	/flagz, /statusz                     the flags of the process; its version and start time
//	/containerLogs/NAMESPACE/POD/NAME    the log of a container
//	/exec, /attach, /portForward         streams to containers, over SPDY and WebSocket
//	/run                                 runs a command and returns its output
//	/checkpoint                          makes the runtime save a container
//	/logs/                               the files below /var/log
//	/debug/pprof/                        profiles of syncloop
//
// The read-only server has the paths that change nothing and reveal nothing from inside containers: /pods, /healthz,
// /metrics and /stats. It has neither TLS nor authentication. Therefore it listens only on the loopback interface, and
// answers only requests whose host is this node.
//
// One table has the permissions, the metrics label and the limits of each path. The authorization and the handlers use
// the same table, so they cannot interpret a path differently.
package kubeletapi

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/healthz"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

// Pods returns the pods of the sources with their status. It returns podstore.NotReadyError while they are unknown.
type Pods interface {
	Pods() ([]*v1.Pod, error)
}

// Config configures both servers.
type Config struct {
	Pods   Pods
	Health func() loop.Health
	// Start is the start that requests for pods and containers wait for.
	Start *Start
	// Report reads the resource usage of the node and its pods.
	Report func(ctx context.Context) (*stats.Report, error)
	// Details reads more values of a cgroup for dashboards: stats.DetailsOf. If nil, they are unknown.
	Details func(ctx context.Context, cgroup string, packets bool) stats.Details
	// Gatherer returns the metrics of all processes of the node, Probes those of probes. Metrics counts the requests; both
	// servers share it. Required.
	Gatherer, Probes prometheus.Gatherer
	Metrics          *Metrics
	Logger           *slog.Logger
}

const (
	// maxScrapes is how many scrapes may run at once, which bounds the memory they use.
	maxScrapes = 4
	// answerTimeout bounds the reading of a body and the writing of an answer: it is long enough for a slow client that
	// reads the pods of a full node.
	answerTimeout = 30 * time.Second
	// maxBody bounds how much of a request's body is read. The body is not used.
	maxBody = 64 << 10
)

// route is a path of a server.
type route struct {
	// pattern is http.ServeMux's.
	pattern string
	// path is the label of the requests in the metrics.
	path string
	// subresources are those of the Node: a user may send a request if it may access one of them with the verb of the
	// method.
	subresources []string
	// long is true for answers of unlimited duration. A request that was let in has no deadline except the handler's own.
	long    bool
	handler http.HandlerFunc
}

// common returns the routes of both servers.
func common(cfg Config) []route {
	h := reads{cfg}
	options := promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	}
	used := prometheus.NewRegistry()
	used.MustRegister(newResourceMetrics(h))
	slis := prometheus.NewRegistry()
	levels := newSLIs(slis)
	shown := prometheus.NewRegistry()
	shown.MustRegister(newCadvisorMetrics(h))
	health, pods, figures := []string{"healthz", "proxy"}, []string{"pods", "proxy"}, []string{"metrics"}
	return []route{
		{pattern: "GET /pods", path: "pods", subresources: pods, handler: cfg.afterStart(h.pods)},
		{pattern: "GET /pods/{$}", path: "pods", subresources: pods, handler: cfg.afterStart(h.pods)},
		{
			pattern: "GET /healthz", path: "healthz", subresources: health,
			handler: healthz.All(levels.counted(healthz.Ping(), h.logCheck(), h.loopCheck())...),
		},
		{pattern: "GET /healthz/syncloop", path: "healthz", subresources: health, handler: healthz.One(h.loopCheck())},
		{pattern: "GET /healthz/ping", path: "healthz", subresources: health, handler: healthz.One(healthz.Ping())},
		{pattern: "GET /healthz/log", path: "healthz", subresources: health, handler: healthz.One(h.logCheck())},
		{
			pattern: "GET /metrics", path: "metrics", subresources: figures,
			handler: promhttp.HandlerFor(cfg.Gatherer, options).ServeHTTP,
		},
		{
			pattern: "GET /metrics/probes", path: "metrics/probes", subresources: figures,
			handler: promhttp.HandlerFor(cfg.Probes, options).ServeHTTP,
		},
		{
			pattern: "GET /metrics/resource", path: "metrics/resource", subresources: figures,
			handler: cfg.afterStart(promhttp.HandlerFor(used, options).ServeHTTP),
		},
		{
			pattern: "GET /metrics/cadvisor", path: "metrics/cadvisor", subresources: figures,
			handler: cfg.afterStart(promhttp.HandlerFor(shown, options).ServeHTTP),
		},
		{
			pattern: "GET /metrics/slis", path: "metrics/slis", subresources: figures,
			handler: promhttp.HandlerFor(slis, options).ServeHTTP,
		},
		{pattern: "GET /stats/summary", path: "stats", subresources: []string{"stats"}, handler: cfg.afterStart(h.summary)},
	}
}

// ReadOnly returns the handler of the read-only API of a node.
func ReadOnly(nodeName string, cfg Config) http.Handler {
	api := serve(cfg.Metrics, readOnly, common(cfg), func(next http.Handler, _ ...string) http.Handler { return next })
	return ownHost(nodeName, net.InterfaceAddrs, api)
}

// Guard wraps next with authentication and authorization. A user may send a request if it may access one of the Node's
// subresources with the verb of the method.
type Guard func(next http.Handler, subresources ...string) http.Handler

// serve returns the handler of routes. Requests to other paths are answered only to users who may access everything of
// the Node.
func serve(counts *Metrics, as server, routes []route, guard Guard) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		handler := http.Handler(r.handler)
		if r.long {
			handler = unbounded(handler)
		}
		mux.Handle(r.pattern, counts.counted(as, r.path, r.long, guard(handler, r.subresources...)))
	}
	// The mux answers that the path or method does not exist.
	others := counts.counted(as, otherPath, false, guard(mux, "proxy"))
	return bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern == "" {
			others.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// bounded bounds the body of each request, and sets a deadline for it and for the answer. The deadline begins before
// the authentication, so that nobody who is not let in keeps a connection by a body that does not come or an answer
// that is not read.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setDeadlines(w, time.Now().Add(answerTimeout))
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if r.ContentLength > maxBody {
			w.Header().Set("Connection", "close")
			http.Error(w, "the body of the request is too large", http.StatusRequestEntityTooLarge)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// unbounded removes the deadlines of a request that was let in. It sets them again afterwards, because the server reads
// the rest of a body. A handler that hijacks its connection returns when its stream has ended.
func unbounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setDeadlines(w, time.Time{})
		defer func() { setDeadlines(w, time.Now().Add(answerTimeout)) }()
		next.ServeHTTP(w, r)
	})
}

// setDeadlines sets both deadlines of a request's connection. Only the writers of tests have none.
func setDeadlines(w http.ResponseWriter, deadline time.Time) {
	rc := http.NewResponseController(w)
	_, _ = rc.SetReadDeadline(deadline), rc.SetWriteDeadline(deadline)
}
