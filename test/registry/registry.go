// Package registry is a registry of images for tests: it serves one image under every name that it is asked for, over plain
// HTTP on the loopback interface, which container runtimes take there. It can ask for a password, say that an image is not
// there, hang, break off in the middle, or answer with what it was sent.
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

// Fault is what a registry does wrong with a repository.
type Fault int

// The faults.
const (
	// None: the image can be had.
	None Fault = iota
	// Missing: there is no such image.
	Missing
	// Stuck: the first byte of the image's own layer never comes.
	Stuck
	// Broken: the connection breaks off in the middle of the image's own layer.
	Broken
	// Talkative: who comes with credentials is refused, with an answer that repeats them.
	Talkative
)

// Registry is a server. Its methods may be called from any goroutine.
type Registry struct {
	host    string
	archive archive
	end     chan struct{}

	mu    sync.Mutex
	repos map[string]*repo
}

// repo is what is known of one repository.
type repo struct {
	image
	fault          Fault
	user, password string
	// asked has the users that came, "" for none, in their order.
	asked []string
	// stuck is how many requests hang.
	stuck int
}

// Start serves the image of an archive that docker save, or this repository's tools/images, has made, and stops when the test
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

// Host is the address, HOST:PORT.
func (r *Registry) Host() string { return r.host }

// Image is the name to pull a repository by.
func (r *Registry) Image(repository string) string { return r.host + "/" + repository + ":1" }

// Protect makes a repository ask for a user and a password.
func (r *Registry) Protect(repository, user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.at(repository)
	at.user, at.password = user, password
}

// Break makes a repository go wrong, or right again.
func (r *Registry) Break(repository string, fault Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at(repository).fault = fault
}

// Asked returns the users of the requests for a repository so far, "" for a request without one.
func (r *Registry) Asked(repository string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.at(repository).asked...)
}

// Waiting returns how many requests of a repository hang.
func (r *Registry) Waiting(repository string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at(repository).stuck
}

// at finds a repository, and makes it when it is new. The registry is locked.
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
		w.WriteHeader(http.StatusOK) // the question whether this is a registry
		return
	}
	user, password, _ := req.BasicAuth()
	r.mu.Lock()
	at := r.at(repository)
	at.asked = append(at.asked, user)
	image, fault, denied := at.image, at.fault, user != at.user || password != at.password
	r.mu.Unlock()
	switch {
	case fault == Talkative && user != "":
		refuse(w, http.StatusForbidden, "DENIED", fmt.Sprintf("user %s with password %s (%s) may not", user, password, req.Header.Get("Authorization")))
	case denied:
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
	case fault == Missing:
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "there is no such image")
	case kind == "manifests":
		send(w, req, manifestType, image.manifest, len(image.manifest))
	case what == image.own && fault == Stuck:
		r.hang(req, at)
	case what == image.own && fault == Broken:
		send(w, req, layerType, image.blobs[what][:len(image.blobs[what])/2], len(image.blobs[what]))
	case image.blobs[what] != nil:
		send(w, req, "application/octet-stream", image.blobs[what], len(image.blobs[what]))
	default:
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", "there is no such blob")
	}
}

// hang keeps a request until its client or the test ends.
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

// send answers with content; the server breaks the connection off when it is shorter than the length that is told.
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

// refuse answers with an error as registries write it.
func refuse(w http.ResponseWriter, code int, word, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	body := map[string]any{"errors": []map[string]string{{"code": word, "message": message}}}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		return // the client has left
	}
}
