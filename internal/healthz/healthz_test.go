package healthz_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/quartet-node/quartet/internal/healthz"
)

// TestAnswers has a kubelet's answers to the same requests, except the reasons, which it withholds.
func TestAnswers(t *testing.T) {
	well := func() error { return nil }
	ill := func() error { return errors.New("the loop has not turned for 3m0s") }
	for _, test := range []struct {
		path string
		loop func() error
		code int
		body string
	}{
		{"/healthz", well, http.StatusOK, "ok"},
		{"/healthz?verbose", well, http.StatusOK, "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n"},
		{"/healthz?verbose=true&exclude=syncloop", ill, http.StatusOK, "[+]ping ok\n[+]syncloop excluded: ok\nhealthz check passed\n"},
		{"/healthz?exclude=syncloop", ill, http.StatusOK, "ok"},
		{"/healthz?verbose&exclude=b&exclude=a", well, http.StatusOK, "[+]ping ok\n[+]syncloop ok\nwarn: some health checks cannot be excluded: no matches for \"a\",\"b\"\nhealthz check passed\n"},
		{"/healthz", ill, http.StatusInternalServerError, "[+]ping ok\n[-]syncloop failed: the loop has not turned for 3m0s\nhealthz check failed\n"},
		{"/healthz/ping", ill, http.StatusOK, "ok"},
		{"/healthz/syncloop", well, http.StatusOK, "ok"},
		{"/healthz/syncloop", ill, http.StatusInternalServerError, "internal server error: the loop has not turned for 3m0s\n"},
		{"/healthz/other", well, http.StatusNotFound, "404 page not found\n"},
		{"/", well, http.StatusNotFound, "404 page not found\n"},
	} {
		answer := httptest.NewRecorder()
		handler := healthz.Handler(healthz.Ping(), healthz.Check{Name: "syncloop", Do: test.loop})
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.path, http.NoBody))
		if answer.Code != test.code || answer.Body.String() != test.body {
			t.Errorf("%s: %d %q, want %d %q", test.path, answer.Code, answer.Body, test.code, test.body)
		}
		if kind := answer.Header().Get("Content-Type"); kind != "text/plain; charset=utf-8" {
			t.Errorf("%s: an answer of the type %q, want %q", test.path, kind, "text/plain; charset=utf-8")
		}
	}
}
