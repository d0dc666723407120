package registration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// apiServer implements the part of the API that a registrar uses: one Node, in JSON, with its versions. It replaces the
// network, too: a request that fails without an answer is one of its failures.
type apiServer struct {
	t *testing.T
	// asked is called with the verb of each request before the answer; an error is the answer.
	onRequest func(verb string) error

	mu      sync.Mutex
	version int
	node    *v1.Node
	history []past
	watches int
	// news is closed when something has changed.
	news chan struct{}
}

// past is a change with its resource version.
type past struct {
	version int
	kind    watch.EventType
	node    *v1.Node
}

// client returns a client of the API server.
func (a *apiServer) client() rest.Interface {
	a.t.Helper()
	known := runtime.NewScheme()
	if err := v1.AddToScheme(known); err != nil {
		a.t.Fatal(err)
	}
	cfg := &rest.Config{Host: "https://api.example", APIPath: "/api", QPS: -1, ContentConfig: rest.ContentConfig{
		GroupVersion: &v1.SchemeGroupVersion, NegotiatedSerializer: serializer.NewCodecFactory(known).WithoutConversion(),
	}}
	client, err := rest.RESTClientForConfigAndClient(cfg, &http.Client{Transport: a})
	if err != nil {
		a.t.Fatal(err)
	}
	return client
}

// has returns the current Node, which must not be modified.
func (a *apiServer) has() *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node
}

// put creates or replaces the Node.
func (a *apiServer) put(node *v1.Node) *v1.Node {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := watch.Modified
	if a.node == nil {
		kind = watch.Added
	}
	a.node = node.DeepCopy()
	a.happened(kind)
	return a.node
}

// remove deletes the Node.
func (a *apiServer) remove() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.node = a.node.DeepCopy()
	a.happened(watch.Deleted)
	a.node = nil
}

// happened gives the Node the next version, and records the change.
func (a *apiServer) happened(kind watch.EventType) {
	a.version++
	a.node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	a.node.ResourceVersion = strconv.Itoa(a.version)
	a.history = append(a.history, past{a.version, kind, a.node})
	close(a.news)
	a.news = make(chan struct{})
}

// watched returns the number of watches that have begun.
func (a *apiServer) watched() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.watches
}

// RoundTrip implements http.RoundTripper.
func (a *apiServer) RoundTrip(request *http.Request) (*http.Response, error) {
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPatch: "patch"}[request.Method]
	if request.URL.Query().Get("watch") == "true" {
		verb = "watch"
	}
	if err := a.onRequest(verb); err != nil {
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			return a.refuse(status.Status())
		}
		return nil, err
	}
	const all, one = "/api/v1/nodes", "/api/v1/nodes/node-1"
	stored := a.has()
	switch path := request.URL.Path; {
	case verb == "create" && path == all && stored == nil:
		return a.changed(request, &v1.Node{}, http.StatusCreated)
	case stored == nil && path == one:
		return a.refuse(apierrors.NewNotFound(v1.Resource("nodes"), "node-1").Status())
	case verb == "get" && path == one:
		return a.answer(http.StatusOK, stored)
	case verb == "patch" && path == one && request.Header.Get("Content-Type") == string(types.MergePatchType):
		return a.changed(request, stored.DeepCopy(), http.StatusOK)
	case verb == "patch" && path == one+"/status" && request.Header.Get("Content-Type") == string(types.MergePatchType):
		return a.changed(request, stored.DeepCopy(), http.StatusOK)
	case verb == "watch" && path == all && request.URL.Query().Get("fieldSelector") == "metadata.name=node-1":
		return a.watch(request)
	}
	return a.refuse(
		apierrors.NewBadRequest("not what a node asks for: " + request.Method + " " + request.URL.String()).Status(),
	)
}

// changed applies the body of a request to a Node. This works for merge patches of metadata and resources, and for
// a creation.
func (a *apiServer) changed(request *http.Request, node *v1.Node, code int) (*http.Response, error) {
	patch, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(node)
	if err != nil {
		return nil, err
	}
	// For labels, annotations and resources it is the same as a merge patch.
	after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Node{})
	if err != nil {
		return nil, err
	}
	node = &v1.Node{}
	if err := json.Unmarshal(after, node); err != nil {
		return nil, err
	}
	return a.answer(code, a.put(node))
}

func (a *apiServer) refuse(status metav1.Status) (*http.Response, error) {
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return a.answer(int(status.Code), status)
}

func (a *apiServer) answer(code int, object any) (*http.Response, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return response(code, io.NopCloser(bytes.NewReader(body))), nil
}

func response(code int, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, Body: body}
}

func (a *apiServer) watch(request *http.Request) (*http.Response, error) {
	since, err := strconv.Atoi(request.URL.Query().Get("resourceVersion"))
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	a.mu.Lock()
	a.watches++
	a.mu.Unlock()
	body, events := io.Pipe()
	go func() { _ = events.CloseWithError(a.sendEvents(request.Context(), json.NewEncoder(events), since)) }()
	return response(http.StatusOK, body), nil
}

// tell writes the changes after a version, until the watch ends.
func (a *apiServer) sendEvents(ctx context.Context, to *json.Encoder, since int) error {
	for {
		a.mu.Lock()
		history, news := a.history, a.news
		a.mu.Unlock()
		for _, p := range history {
			if p.version <= since {
				continue
			}
			since = p.version
			if err := to.Encode(map[string]any{"type": p.kind, "object": p.node}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
	}
}
