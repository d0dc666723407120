// Package healthz serves GET /healthz as the kubelet and the API server do: "ok" with code 200, or code 500. With
// ?verbose, and whenever a check fails, the response has a line for each check; ?exclude=NAME skips a check. Unlike
// those two it includes the reason of a failure, because its clients are operators.
//
// nodestatus serves it on healthzPort for the whole node, and syncloop as a part of the kubelet's HTTP API for itself.
package healthz

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Path is the path of all checks together. Each check has its own path below it.
const Path = "/healthz"

// Check is one health check.
type Check struct {
	// Name is its path below Path.
	Name string
	// Do returns the failure; nil if there is none. It must not block.
	Do func() error
}

// Ping returns the check that never fails.
func Ping() Check { return Check{Name: "ping", Do: func() error { return nil }} }

// All serves the result of all checks.
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

// unknownOf returns the quoted names that belong to no check.
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

// One serves the result of one check.
func One(check Check) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check.Do(); err != nil {
			http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
			return
		}
		write(w, "ok")
	}
}

// Handler serves all checks together, and each check at its own path.
func Handler(checks ...Check) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(Path, All(checks...))
	for _, check := range checks {
		mux.HandleFunc(Path+"/"+check.Name, One(check))
	}
	return mux
}

// write writes a successful response. It ignores errors because the client may have gone.
func write(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(text))
}
