package vmnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// apiServer is a stand-in for an API server, which would take minutes to start in an emulated machine. It keeps the
// objects that it is given and changes of Nodes and pods. Its watches have no events.
type apiServer struct {
	mu sync.Mutex
	// objects are the objects by their paths.
	objects map[string]map[string]any
}

// serveAPI serves pods until the test ends, and returns the path of a kubeconfig.
func serveAPI(t *testing.T, pods ...string) string {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}}
	for _, text := range pods {
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		s.put("/api/v1/namespaces/vm/pods/"+nameOf(object), object)
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // first, because watches do not end
	const file = "/run/kubeconfig"
	content := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "vm",
		"clusters": [{"name": "vm", "cluster": {"server": %q}}], "users": [{"name": "vm", "user": {"token": "vm"}}],
		"contexts": [{"name": "vm", "context": {"cluster": "vm", "user": "vm"}}]}`, server.URL)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func nameOf(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}

// put stores an object. Called with mu held, or before it is shared.
func (s *apiServer) put(place string, object map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		object["metadata"] = metadata
	}
	if metadata["uid"] == nil {
		metadata["uid"] = "uid-of-" + strings.ReplaceAll(strings.Trim(place, "/"), "/", "-")
	}
	metadata["resourceVersion"] = fmt.Sprint(len(s.objects) + 1)
	s.objects[place] = object
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Query().Get("watch") != "" {
		if r.URL.Query().Get("sendInitialEvents") != "" {
			answer(w, http.StatusUnprocessableEntity, failure(http.StatusUnprocessableEntity, "Invalid"))
			return // the client lists and watches instead
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		if err := http.NewResponseController(w).Flush(); err == nil {
			<-r.Context().Done()
		}
		return
	}
	data, err := io.ReadAll(r.Body)
	body, invalid := decode(r, data)
	if err := errors.Join(err, invalid); err != nil {
		answer(w, http.StatusBadRequest, failure(http.StatusBadRequest, "BadRequest"))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	code, object := s.handle(r.Method, strings.TrimSuffix(r.URL.Path, "/status"), data, body)
	answer(w, code, object)
}

// decode returns the object of a body, which may be in protobuf; nil for a patch.
func decode(r *http.Request, data []byte) (map[string]any, error) {
	if r.Method != http.MethodPost && r.Method != http.MethodPut {
		return nil, nil //nolint:nilnil // there is no object
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(object)
}

// handle handles a request. Called with mu held.
func (s *apiServer) handle(method, place string, data []byte, body map[string]any) (int, map[string]any) {
	object, has := s.objects[place]
	switch {
	case method == http.MethodPost:
		place = path.Join(place, nameOf(body))
		if s.objects[place] != nil {
			return http.StatusConflict, failure(http.StatusConflict, "AlreadyExists")
		}
		s.put(place, body)
		return http.StatusCreated, body
	case method == http.MethodGet && !has && isCollection(place):
		return http.StatusOK, s.list(place)
	case method == http.MethodDelete:
		delete(s.objects, place)
		return http.StatusOK, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Success"}
	case !has:
		return http.StatusNotFound, failure(http.StatusNotFound, "NotFound")
	case method == http.MethodPut:
		s.put(place, body)
	case method == http.MethodPatch:
		if err := s.patch(place, object, data); err != nil {
			return http.StatusBadRequest, failure(http.StatusBadRequest, err.Error())
		}
	}
	return http.StatusOK, s.objects[place]
}

// isCollection reports whether a path is that of all objects of a kind, in a namespace or the cluster.
func isCollection(place string) bool {
	_, parts := split(place)
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	return len(parts) == 1
}

// split splits a path into the group and version of the API and the rest.
func split(place string) (gv schema.GroupVersion, rest []string) {
	parts := strings.Split(strings.Trim(place, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 1:
		return schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) > 2:
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	}
	return gv, nil
}

// list returns the objects of a collection.
func (s *apiServer) list(place string) map[string]any {
	items := []any{}
	for at, object := range s.objects {
		if path.Base(path.Dir(at)) == path.Base(place) {
			items = append(items, object)
		}
	}
	list := map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": items}
	gv, _ := split(place)
	for kind := range scheme.Scheme.KnownTypes(gv) {
		if plural, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind)); plural.Resource == path.Base(place) {
			list["apiVersion"], list["kind"] = gv.String(), kind+"List"
		}
	}
	return list
}

// patch changes a Node or a pod. Called with mu held.
func (s *apiServer) patch(place string, object map[string]any, data []byte) error {
	kinds := map[string]any{"nodes": v1.Node{}, "pods": v1.Pod{}}
	kind := kinds[path.Base(path.Dir(place))]
	if kind == nil {
		return nil
	}
	before, err := json.Marshal(object)
	if err != nil {
		return err
	}
	after, err := strategicpatch.StrategicMergePatch(before, data, kind)
	changed := map[string]any{}
	if err := errors.Join(err, json.Unmarshal(after, &changed)); err != nil {
		return err
	}
	s.put(place, changed)
	return nil
}

func failure(code int, reason string) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code}
}

func answer(w http.ResponseWriter, code int, object map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) //nolint:errchkjson // the client may be gone
}
