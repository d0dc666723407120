// Package healthz answers GET /healthz as the kubelet and the API server do: "ok" with the code 200, or the code 500. With ?verbose, and
// whenever a check fails, the answer has a line for each check; ?exclude=NAME leaves a check out. Unlike those two it gives the reason of
// a failure there and then, because who asks a node is somebody who operates it.
//
// nodestatus serves it on healthzPort for the whole node, syncloop as a part of the kubelet's HTTP API for itself.
package healthz

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Path is where all checks are answered at once. Each check is at a path of its own below it.
const Path = "/healthz"

// Check is one thing that can be wrong.
type Check struct {
	// Name is its path below Path.
	Name string
	// Do returns what is wrong. It must not wait for anything.
	Do func() error
}

// Ping is the check that somebody answers. It never fails.
func Ping() Check { return Check{Name: "ping", Do: func() error { return nil }} }

// All answers for all checks.
func All(checks ...Check) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		excluded := r.URL.Query()["exclude"]
		var lines strings.Builder
		failed := false
		for _, check := range checks {
			if slices.Contains(excluded, check.Name) {
				fmt.Fprintf(&lines, "[+]%s excluded: ok\n", check.Name)
				continue
			}
			if err := check.Do(); err != nil {
				failed = true
				fmt.Fprintf(&lines, "[-]%s failed: %v\n", check.Name, err)
				continue
			}
			fmt.Fprintf(&lines, "[+]%s ok\n", check.Name)
		}
		if unknown := unknownOf(excluded, checks); len(unknown) > 0 {
			fmt.Fprintf(&lines, "warn: some health checks cannot be excluded: no matches for %s\n", strings.Join(unknown, ","))
		}
		switch {
		case failed:
			http.Error(w, lines.String()+"healthz check failed", http.StatusInternalServerError)
		case r.URL.Query().Has("verbose"):
			write(w, lines.String()+"healthz check passed\n")
		default:
			write(w, "ok")
		}
	}
}

// unknownOf returns the names that are those of no check, quoted.
func unknownOf(names []string, checks []Check) []string {
	var unknown []string
	for _, name := range names {
		if !slices.ContainsFunc(checks, func(c Check) bool { return c.Name == name }) {
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	slices.Sort(unknown)
	return slices.Compact(unknown)
}

// One answers for one check.
func One(check Check) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check.Do(); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		write(w, "ok")
	}
}

// Handler serves all checks, each at its path, too.
func Handler(checks ...Check) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(Path, All(checks...))
	for _, check := range checks {
		mux.HandleFunc(Path+"/"+check.Name, One(check))
	}
	return mux
}

// write answers that all is well. A client that has gone does not get it.
func write(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(text))
}
