package apisource

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/quartet-node/quartet/internal/reflector"
)

// apiServer implements the part of the API that a reflector of pods uses: lists and watches with resource versions, in
// protobuf.
type apiServer struct {
	t *testing.T
	*httptest.Server
	codecs serializer.CodecFactory
	info   runtime.SerializerInfo

	mu      sync.Mutex
	version int
	pods    map[string]*v1.Pod
	history []past
	// forgotten is the last version without history.
	forgotten int
	// refusal answers every request instead; nil disables it.
	refusal http.HandlerFunc
	// asked has the query of each request, as "list QUERY" or "watch QUERY".
	seen    []string
	accepts []string
	// news is closed when something has changed.
	news chan struct{}
	// cut is closed to end all watches.
	cut chan struct{}
}

// past is a change with its resource version.
type past struct {
	version int
	event   watch.Event
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	codecs := codecsOf(t)
	info, known := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !known {
		t.Fatal("client-go does not know protobuf")
	}
	a := &apiServer{
		t:       t,
		codecs:  codecs,
		info:    info,
		version: 10,
		pods:    map[string]*v1.Pod{},
		news:    make(chan struct{}),
		cut:     make(chan struct{}),
	}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
	a.EnableHTTP2 = true
	a.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	a.StartTLS()
	t.Cleanup(func() {
		a.cutAll()
		a.Close()
	})
	return a
}

// client returns a client of the server that uses protobuf.
func (a *apiServer) client() rest.Interface {
	a.t.Helper()
	return clientOf(
		a.t,
		&rest.Config{
			Host:            a.URL,
			BearerToken:     "hunter2-token",
			TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(a.Certificate())},
		},
	)
}

// codecsOf returns the codecs of core/v1 alone.
func codecsOf(t *testing.T) serializer.CodecFactory {
	t.Helper()
	known := runtime.NewScheme()
	must(t, v1.AddToScheme(known))
	return serializer.NewCodecFactory(known)
}

func clientOf(t *testing.T, cfg *rest.Config) rest.Interface {
	t.Helper()
	cfg.ContentConfig = rest.ContentConfig{
		ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf,
		GroupVersion: &v1.SchemeGroupVersion, NegotiatedSerializer: codecsOf(t).WithoutConversion(),
	}
	cfg.APIPath, cfg.QPS = "/api", -1
	httpClient, err := rest.HTTPClientFor(cfg)
	must(t, err)
	t.Cleanup(httpClient.CloseIdleConnections)
	client, err := rest.RESTClientForConfigAndClient(cfg, httpClient)
	must(t, err)
	return client
}

// put creates or updates a pod.
func (a *apiServer) put(pod *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := watch.Modified
	if a.pods[pod.Namespace+"/"+pod.Name] == nil {
		kind = watch.Added
	}
	a.change(kind, pod)
}

// remove removes a pod.
func (a *apiServer) remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.change(watch.Deleted, a.pods["default/"+name])
}

func (a *apiServer) change(kind watch.EventType, pod *v1.Pod) {
	a.version++
	pod = pod.DeepCopy()
	pod.ResourceVersion = strconv.Itoa(a.version)
	a.history = append(a.history, past{a.version, watch.Event{Type: kind, Object: pod}})
	a.pods[pod.Namespace+"/"+pod.Name] = pod
	if kind == watch.Deleted {
		delete(a.pods, pod.Namespace+"/"+pod.Name)
	}
	close(a.news)
	a.news = make(chan struct{})
}

// forget removes the history up to now.
func (a *apiServer) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	a.forgotten, a.history = a.version, nil
}

// refuse sets the answer to all later requests; nil restores the server's own.
func (a *apiServer) refuse(with http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusal = with
}

// cutAll ends all watches.
func (a *apiServer) cutAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.cut)
	a.cut = make(chan struct{})
}

// requests returns the queries of all requests of a verb.
func (a *apiServer) requests(v reflector.Verb) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, request := range a.seen {
		if query, is := strings.CutPrefix(request, string(v)+" "); is {
			out = append(out, query)
		}
	}
	return out
}

func (a *apiServer) serve(out http.ResponseWriter, request *http.Request) {
	a.mu.Lock()
	query, refusal, cut := request.URL.Query(), a.refusal, a.cut
	kind := reflector.VerbList
	if query.Get("watch") == "true" {
		kind = reflector.VerbWatch
	}
	a.seen = append(a.seen, string(kind)+" "+request.URL.RawQuery)
	a.accepts = append(a.accepts, request.Header.Get("Accept"))
	a.mu.Unlock()
	switch {
	case refusal != nil:
		refusal(out, request)
	case request.URL.Path != "/api/v1/pods" || query.Get("fieldSelector") != "spec.nodeName=node":
		refuseWith(http.StatusNotFound, metav1.StatusReasonNotFound, "not what a node asks for")(out, request)
	case kind == reflector.VerbWatch:
		a.watch(out, request, cut)
	default:
		a.list(out)
	}
}

func (a *apiServer) list(out http.ResponseWriter) {
	a.mu.Lock()
	list := &v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}}
	for _, name := range slices.Sorted(maps.Keys(a.pods)) {
		list.Items = append(list.Items, *a.pods[name])
	}
	a.mu.Unlock()
	out.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	if err := a.codecs.EncoderForVersion(a.info.Serializer, v1.SchemeGroupVersion).Encode(list, out); err != nil {
		a.t.Error(err)
	}
}

func (a *apiServer) watch(out http.ResponseWriter, request *http.Request, cut <-chan struct{}) {
	from, err := strconv.Atoi(request.URL.Query().Get("resourceVersion"))
	if err != nil {
		refuseWith(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())(out, request)
		return
	}
	out.Header().Set("Content-Type", a.info.MediaType+";stream=watch")
	out.WriteHeader(http.StatusOK)
	flusher := out.(http.Flusher)
	flusher.Flush()
	encoder := a.codecs.EncoderForVersion(a.info.StreamSerializer.Serializer, v1.SchemeGroupVersion)
	events := restwatch.NewEncoder(streaming.NewEncoder(a.info.StreamSerializer.NewFrameWriter(out), encoder),
		a.codecs.EncoderForVersion(a.info.Serializer, v1.SchemeGroupVersion))
	for {
		a.mu.Lock()
		later, news, gone := slices.Clone(a.history), a.news, from < a.forgotten
		a.mu.Unlock()
		if gone {
			_ = events.Encode(&watch.Event{Type: watch.Error, Object: &metav1.Status{
				Status:  metav1.StatusFailure,
				Code:    http.StatusGone,
				Reason:  metav1.StatusReasonExpired,
				Message: "too old resource version",
			}})
			return
		}
		for _, p := range later {
			if p.version <= from {
				continue
			}
			event := p.event
			if err := events.Encode(&event); err != nil {
				return
			}
			from = p.version
		}
		flusher.Flush()
		select {
		case <-news:
		case <-cut:
			return
		case <-request.Context().Done():
			return
		}
	}
}

// refuseWith answers with a failure in the API server's format.
func refuseWith(code int32, reason metav1.StatusReason, message string) http.HandlerFunc {
	return func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", runtime.ContentTypeJSON)
		out.WriteHeader(int(code))
		_ = json.NewEncoder(out).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{
				Kind:       "Status",
				APIVersion: "v1",
			},
			Status:  metav1.StatusFailure,
			Code:    code,
			Reason:  reason,
			Message: message,
		})
	}
}

// pod returns a pod of this node.
func pod(name, image string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID("uid-of-" + name),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "somebody", Operation: metav1.ManagedFieldsOperationUpdate}},
		},
		Spec: v1.PodSpec{NodeName: "node", Containers: []v1.Container{{Name: "c", Image: image}}},
	}
}

func text(pod *v1.Pod) string { return fmt.Sprintf("%s %s", pod.Name, pod.Spec.Containers[0].Image) }
