package main

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// page is what is at / over HTTP, from files that somebody else may replace: they are read anew for each request.
type page struct {
	// file has the text; empty is for none.
	file string
	// password is the file with the password that the text is given for, to any user; empty gives it to everybody.
	password string
}

// before answers what is at /, and leaves everything else to another handler.
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
		_, _ = w.Write(text) // who has gone needs no answer
	})
}

// allows tells whether a request has the password.
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
