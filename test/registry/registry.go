// Package registry is an image registry for tests: it serves one image under every requested name, over plain HTTP on
// the loopback interface, which container runtimes accept there. It can require a password, deny that an image exists,
// hang, break a connection in the middle, or repeat credentials in its answer.
package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is the fault of a repository.
type Fault int

// The faults.
const (
	// None: the image can be pulled.
	None Fault = iota
	// Missing: the image does not exist.
	Missing
	// Stuck: the first byte of the image's own layer is never sent.
	Stuck
	// Broken: the connection breaks in the middle of the image's own layer.
	Broken
	// Talkative: a client with credentials is refused, with an answer that repeats them.
	Talkative
)

// Registry is a running registry. Its methods may be called from any goroutine.
type Registry struct {
	host    string
	archive archive
	end     chan struct{}

	mu    sync.Mutex
	repos map[string]*repo
}

// repo is the state of one repository.
type repo struct {
	image
	fault          Fault
	user, password string
	// users has the users of the requests in their order, "" for none.
	users []string
	// stuck is the number of hanging requests.
	stuck int
}

// Start serves the image of an archive that docker save or this repository's tools/images has written, until the test
// ends.
func Start(t testing.TB, file string) *Registry {
	t.Helper()
	archive, err := readArchive(file)
	if err != nil {
		t.Fatalf("registry: %v", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("registry: %v", err)
	}
	r := &Registry{host: listener.Addr().String(), archive: archive, end: make(chan struct{}), repos: map[string]*repo{}}
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		close(r.end)
		if err := server.Close(); err != nil {
			t.Errorf("registry: %v", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("registry: %v", err)
		}
	})
	return r
}

// Host returns the address, HOST:PORT.
func (r *Registry) Host() string { return r.host }

// Image returns the name by which a repository's image is pulled.
func (r *Registry) Image(repository string) string { return r.host + "/" + repository + ":1" }

// Protect makes a repository require a user and a password.
func (r *Registry) Protect(repository, user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.at(repository)
	at.user, at.password = user, password
}

// Break sets the fault of a repository. None repairs it.
func (r *Registry) Break(repository string, fault Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(repository).fault = fault
}

// Asked returns the users of the requests for a repository so far, "" for a request without one.
func (r *Registry) Asked(repository string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.at(repository).users...)
}

// Waiting returns the number of hanging requests for a repository.
func (r *Registry) Waiting(repository string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at(repository).stuck
}

// at returns a repository and creates it when it is new. The registry is locked.
func (r *Registry) at(repository string) *repo {
	if r.repos[repository] == nil {
		r.repos[repository] = &repo{image: r.archive.variant(repository)}
	}
	return r.repos[repository]
}

// ServeHTTP implements http.Handler: the part of the OCI distribution protocol that a pull needs.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	kind, what := path.Base(path.Dir(rest)), path.Base(rest)
	repository := path.Dir(path.Dir(rest))
	if !ok || rest == "" || (kind != "manifests" && kind != "blobs") {
		w.WriteHeader(http.StatusOK) // the check whether this is a registry
		return
	}
	user, password, _ := req.BasicAuth()
	r.mu.Lock()
	at := r.at(repository)
	at.users = append(at.users, user)
	image, fault, denied := at.image, at.fault, user != at.user || password != at.password
	r.mu.Unlock()
	switch {
	case fault == Talkative && user != "":
		refuse(w, http.StatusForbidden, "DENIED", fmt.Sprintf("user %s with password %s (%s) may not", user, password, req.Header.Get("Authorization")))
	case denied:
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
	case fault == Missing:
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "the image does not exist")
	case kind == "manifests":
		send(w, req, manifestType, image.manifest, len(image.manifest))
	case what == image.own && fault == Stuck:
		r.hang(req, at)
	case what == image.own && fault == Broken:
		send(w, req, layerType, image.blobs[what][:len(image.blobs[what])/2], len(image.blobs[what]))
	case image.blobs[what] != nil:
		send(w, req, "application/octet-stream", image.blobs[what], len(image.blobs[what]))
	default:
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", "the blob does not exist")
	}
}

// hang blocks a request until its client or the test ends.
func (r *Registry) hang(req *http.Request, at *repo) {
	count := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		at.stuck += n
	}
	count(1)
	defer count(-1)
	select {
	case <-req.Context().Done():
	case <-r.end:
	}
}

// send answers with content; the server breaks the connection when the content is shorter than the announced length.
func send(w http.ResponseWriter, req *http.Request, kind string, content []byte, length int) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(length))
	w.Header().Set("Docker-Content-Digest", digest(content))
	if req.Method == http.MethodHead {
		return
	}
	if _, err := w.Write(content); err != nil {
		return // the client has left
	}
}

// refuse answers with an error in the registries' format.
func refuse(w http.ResponseWriter, code int, word, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	body := map[string]any{"errors": []map[string]string{{"code": word, "message": message}}}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		return // the client has left
	}
}
