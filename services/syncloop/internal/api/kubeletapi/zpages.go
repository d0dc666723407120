package kubeletapi

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"
)

// component is the name of the node's process on the pages.
const component = "kubelet"

// pageHeader begins each text page.
const pageHeader = "\n" + component + " %s\n" +
	"Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees " +
	"and is for debugging purposes only.\n"

// Process is the process that /flagz and /statusz describe.
type Process struct {
	// Flags are the flags of the process with their values or defaults, by name. None is secret.
	Flags map[string]string
	// Started is when the process was started.
	Started time.Time
	// Version is the version of Quartet. Kubernetes is the version of the kubelet that it behaves like, for example
	// "v1.37.1".
	Version, Kubernetes string
}

// pageObject is a page in JSON, in the kubelet's format.
type pageObject struct {
	Kind       string            `json:"kind"`
	APIVersion string            `json:"apiVersion"`
	Metadata   map[string]string `json:"metadata"`
	Flags      map[string]string `json:"flags,omitempty"`
	*pageStatus
}

type pageStatus struct {
	StartTime        time.Time `json:"startTime"`
	UptimeSeconds    int64     `json:"uptimeSeconds"`
	GoVersion        string    `json:"goVersion"`
	BinaryVersion    string    `json:"binaryVersion"`
	EmulationVersion string    `json:"emulationVersion,omitempty"`
	Paths            []string  `json:"paths"`
}

// flagz answers with the flags of the process.
func (n *node) flagz(w http.ResponseWriter, r *http.Request) {
	version, ok := pageVersion(w, r, "Flagz")
	if !ok {
		return
	}
	if version != "" {
		n.writePage(w, "Flagz", version, pageObject{Flags: n.Process.Flags})
		return
	}
	var text strings.Builder
	_, _ = fmt.Fprintf(&text, pageHeader, "flagz")
	for _, name := range slices.Sorted(maps.Keys(n.Process.Flags)) {
		_, _ = fmt.Fprintf(&text, "%s=%s\n", name, n.Process.Flags[name])
	}
	n.read.writeText(w, http.StatusOK, text.String())
}

// statusz answers with the version, the start time and the paths of the server.
func (n *node) statusz(w http.ResponseWriter, r *http.Request) {
	version, ok := pageVersion(w, r, "Statusz")
	if !ok {
		return
	}
	up := max(n.Clock.Since(n.Process.Started), 0)
	status := &pageStatus{
		StartTime: n.Process.Started.UTC().Truncate(time.Second), UptimeSeconds: int64(up.Seconds()),
		GoVersion:     runtime.Version(),
		BinaryVersion: n.Process.Version, EmulationVersion: strings.TrimPrefix(n.Process.Kubernetes, "v"), Paths: n.roots,
	}
	if version != "" {
		n.writePage(w, "Statusz", version, pageObject{pageStatus: status})
		return
	}
	n.read.writeText(w, http.StatusOK, fmt.Sprintf(pageHeader+`
Started: %s
Up: %d hr %02d min %02d sec
Go version: %s
Binary version: %s
Emulation version: %s
Paths: %s
`, "statusz", n.Process.Started.UTC().Format(time.UnixDate), int64(up.Hours()), int64(up.Minutes())%60, int64(up.Seconds())%60,
		status.GoVersion, status.BinaryVersion, status.EmulationVersion, strings.Join(status.Paths, " ")))
}

// writePage answers with a page in JSON.
func (n *node) writePage(w http.ResponseWriter, kind, version string, page pageObject) {
	page.Kind, page.APIVersion, page.Metadata = kind, "config.k8s.io/"+version, map[string]string{"name": component}
	n.read.writeJSON(w, page)
}

// pageVersion returns the API version of the page that a client accepts; empty means text. If the client accepts
// neither, pageVersion answers with an error and returns false.
func pageVersion(w http.ResponseWriter, r *http.Request, kind string) (version string, ok bool) {
	accepted := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(accepted) == "" {
		return "", true
	}
	for text := range strings.SplitSeq(accepted, ",") {
		media, more, err := mime.ParseMediaType(text)
		if err != nil {
			continue
		}
		switch media {
		case "text/plain", "text/*", "*/*":
			return "", true
		case "application/json":
			if more["as"] == kind && more["g"] == "config.k8s.io" && (more["v"] == "v1beta1" || more["v"] == "v1alpha1") {
				return more["v"], true
			}
		}
	}
	http.Error(w, fmt.Sprintf("only text/plain and application/json;as=%s;v=v1beta1;g=config.k8s.io are there", kind), http.StatusNotAcceptable)
	return "", false
}

// rootsOf returns the first elements of the paths of routes.
func rootsOf(routes []route) []string {
	var all []string
	for _, r := range routes {
		_, path, found := strings.Cut(r.pattern, "/")
		if first, _, _ := strings.Cut(path, "/"); found && first != "" {
			all = append(all, "/"+first)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
