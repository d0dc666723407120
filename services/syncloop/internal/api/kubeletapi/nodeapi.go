package kubeletapi

import (
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"
	internalapi "k8s.io/cri-api/pkg/apis"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// NodeConfig configures the authenticated API.
type NodeConfig struct {
	Config
	// Guard authenticates and authorizes requests.
	Guard Guard
	// Runtime returns the container runtime; it fails at once if the runtime is away.
	Runtime func() (internalapi.RuntimeService, error)
	// Kubelet is the configuration with its defaults. It selects the enabled paths and is the answer of /configz.
	Kubelet *kubeletconfigv1beta1.KubeletConfiguration
	// LogDir is the directory that /logs/ serves; /var/log on a node.
	LogDir string
	// Checkpoints is the directory in which /checkpoint saves containers.
	Checkpoints string
	// Process is described by /flagz and /statusz.
	Process Process
	// Clock is used for sinceSeconds and for the uptime of the process.
	Clock clock.PassiveClock
	// UserName returns the name of the request's user for the log.
	UserName func(r *http.Request) string
	// Tracer makes a span for each request for a stream, a command or a log of a pod.
	Tracer trace.Tracer
}

// API is the authenticated API.
type API struct {
	http.Handler
	streams *http.Transport
}

// Close closes idle connections.
func (a *API) Close() { a.streams.CloseIdleConnections() }

// node serves the paths that only the authenticated API has.
type node struct {
	NodeConfig
	read    reads
	streams *http.Transport
	// roots are the first elements of all paths.
	roots []string
}

// Node returns the authenticated API.
func Node(cfg NodeConfig) *API {
	n := &node{NodeConfig: cfg, read: reads{cfg.Config}, streams: streamTransport()}
	routes := append(common(cfg.Config), n.routes()...)
	n.roots = rootsOf(routes)
	return &API{Handler: serve(cfg.Metrics, readWrite, routes, cfg.Guard), streams: n.streams}
}

// idle is how long a stream may be idle.
func (n *node) idle() time.Duration { return n.Kubelet.StreamingConnectionIdleTimeout.Duration }

// all is the subresource that stands for everything of a Node.
const all = "proxy"

func (n *node) routes() []route {
	proxy := []string{all}
	routes := []route{}
	if !*n.Kubelet.EnableDebuggingHandlers {
		for path, pattern := range map[string]string{
			"run": "/run/", "exec": "/exec/", "attach": "/attach/", "portForward": "/portForward/",
			"containerLogs": "/containerLogs/",
			"runningpods":   "/runningpods/", "debug": "/debug/pprof/", "logs": "/logs/",
		} {
			routes = append(routes, route{
				pattern: pattern, path: path, subresources: proxy, handler: off("enableDebuggingHandlers"),
			})
		}
		return routes
	}
	for path, handler := range map[string]http.HandlerFunc{"exec": n.exec, "attach": n.attach} {
		for _, pattern := range []string{"GET /%/{namespace}/{pod}/{container}", "POST /%/{namespace}/{pod}/{container}",
			"GET /%/{namespace}/{pod}/{uid}/{container}", "POST /%/{namespace}/{pod}/{uid}/{container}"} {
			routes = append(routes, route{
				pattern: at(path, pattern), path: path, subresources: proxy, long: true,
				handler: n.traced(path, n.afterStart(handler)),
			})
		}
	}
	for _, pattern := range []string{
		"GET /%/{namespace}/{pod}", "POST /%/{namespace}/{pod}", "GET /%/{namespace}/{pod}/{uid}",
		"POST /%/{namespace}/{pod}/{uid}",
	} {
		routes = append(routes, route{
			pattern: at("portForward", pattern), path: "portForward", subresources: proxy, long: true,
			handler: n.traced("portForward", n.afterStart(n.portForward)),
		})
	}
	for _, pattern := range []string{
		"POST /%/{namespace}/{pod}/{container}", "POST /%/{namespace}/{pod}/{uid}/{container}",
	} {
		routes = append(routes, route{
			pattern: at("run", pattern), path: "run", subresources: proxy, long: true,
			handler: n.traced("run", n.afterStart(n.run)),
		})
	}
	return append(routes, append([]route{
		{
			pattern: "GET /containerLogs/{namespace}/{pod}/{container}", path: "containerLogs", subresources: proxy, long: true,
			handler: n.traced("containerLogs", n.afterStart(n.containerLogs)),
		},
		{
			pattern: "GET /runningpods/{$}", path: "runningpods", subresources: []string{"pods", all},
			handler: n.afterStart(n.runningPods),
		},
		{pattern: "GET /flagz", path: "flagz", subresources: []string{"configz"}, handler: n.flagz},
		{pattern: "GET /statusz", path: "statusz", subresources: []string{"statusz"}, handler: n.statusz},
		{pattern: "GET /configz", path: "configz", subresources: []string{"configz", all}, handler: n.configz},
		{
			pattern: "POST /checkpoint/{namespace}/{pod}/{container}", path: "checkpoint", subresources: []string{"checkpoint"},
			long: true, handler: n.traced("checkpoint", n.afterStart(n.checkpoint)),
		},
	}, n.optional()...)...)
}

// optional returns the routes that the configuration can disable one by one.
func (n *node) optional() []route {
	files, profiles := n.nodeLogs, n.profiles
	if ptr.Deref(n.Kubelet.EnableSystemLogQuery, false) {
		files = n.queriedLogs
	}
	if !*n.Kubelet.EnableSystemLogHandler {
		files = off("enableSystemLogHandler")
	}
	if !*n.Kubelet.EnableProfilingHandler {
		profiles = off("enableProfilingHandler")
	}
	return []route{
		{pattern: "GET /logs/", path: "logs", subresources: []string{"log"}, long: true, handler: files},
		{pattern: "GET /debug/pprof/", path: "debug", subresources: []string{all}, long: true, handler: profiles},
	}
}

// off returns a handler that answers which field of the configuration disables a path.
func off(field string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, field+" is false in the configuration of this node", http.StatusMethodNotAllowed)
	}
}
