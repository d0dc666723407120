package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/rpc"
)

// askVersions returns the versions of the services from their metrics, as far as these are served at the default
// address.
func (p *patient) askVersions(ctx context.Context) map[layout.Service]string {
	versions := map[layout.Service]string{}
	for _, service := range layout.Services() {
		if version, err := versionAt(ctx, p.layout.MetricsSocket(service)); err == nil {
			versions[service] = version
		}
	}
	return versions
}

// versionAt reads the version of a process from its metrics socket.
func versionAt(ctx context.Context, socket string) (version string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://quartet/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return rpc.Connect(ctx, "unix://"+socket)
		},
	}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	return versionIn(response.Body)
}

// buildInfo matches the metric with the version of a process.
var buildInfo = regexp.MustCompile(`^quartet_build_info\{(?:.*,)?version="([^"]*)"`)

// versionIn finds the version in metrics.
func versionIn(metrics io.Reader) (string, error) {
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		if match := buildInfo.FindStringSubmatch(lines.Text()); match != nil {
			return match[1], nil
		}
	}
	return "", errors.Join(errors.New("there is no quartet_build_info"), lines.Err())
}

// judgeVersions compares the versions; no finding for fewer than two. During an upgrade they differ, and the services
// work together.
func judgeVersions(versions map[layout.Service]string) []machine.Finding {
	if len(versions) < 2 {
		return nil
	}
	var known []string
	distinct := map[string]bool{}
	for _, service := range layout.Services() {
		if version, ok := versions[service]; ok {
			known = append(known, fmt.Sprintf("%s %s", service, version))
			distinct[version] = true
		}
	}
	f := machine.Ok("versions", "%s", strings.Join(known, ", "))
	if len(distinct) > 1 {
		return []machine.Finding{
			f.With(
				machine.Warning,
				"they differ: "+f.Detail,
				"end the upgrade: put all four of one version in place, and restart those that are older",
			),
		}
	}
	return []machine.Finding{f}
}

// unixClient returns an HTTP client for a socket. It keeps no connections.
func unixClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
}
