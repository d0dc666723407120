package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestGetPrintsTheAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/there" {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprintf(w, "%s %s\n", r.Method, r.URL.Path)
	}))
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(server.Close)
	t.Cleanup(silent.Close)
	for name, c := range map[string]struct {
		args     []string
		code     int
		out, err string
	}{
		"an answer":      {args: []string{server.URL + "/there"}, out: "GET /there\n"},
		"not found":      {args: []string{server.URL + "/away"}, code: 1, out: "GET /away\n", err: "Not Found"},
		"no answer":      {args: []string{"-after", "50ms", silent.URL}, code: 1, err: "deadline exceeded"},
		"no such server": {args: []string{"http://127.0.0.1:1/"}, code: 1, err: "refused"},
		"no URL":         {code: usageCode, err: "name one URL"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, err strings.Builder
			code := run(append([]string{"get"}, c.args...), &out, &err)
			if code != c.code || out.String() != c.out || !strings.Contains(err.String(), c.err) {
				t.Errorf("it ends with %d, prints %q and %q, want %d, %q and with %q",
					code, out.String(), err.String(), c.code, c.out, c.err)
			}
		})
	}
}
