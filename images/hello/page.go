package main

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// page is the answer at / over HTTP, from files that another process may replace: they are read for each request.
type page struct {
	// file has the text; empty: there is no page.
	file string
	// password is the file with the password of the page, for any user name; empty: no password is needed.
	password string
}

// before answers requests for / and passes all others to another handler.
func (p page) before(next http.Handler) http.Handler {
	if p.file == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			next.ServeHTTP(w, r)
			return
		}
		may, err := p.allows(r)
		if err == nil && !may {
			w.Header().Set("WWW-Authenticate", `Basic realm="hello"`)
			http.Error(w, "the password is missing or wrong", http.StatusUnauthorized)
			return
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(p.file)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(text) // an error means that the client has gone
	})
}

// allows reports whether a request has the password.
func (p page) allows(r *http.Request) (bool, error) {
	if p.password == "" {
		return true, nil
	}
	want, err := os.ReadFile(p.password)
	if err != nil {
		return false, fmt.Errorf("read the password: %w", err)
	}
	_, got, _ := r.BasicAuth()
	return subtle.ConstantTimeCompare([]byte(got), []byte(strings.TrimSpace(string(want)))) == 1, nil
}
