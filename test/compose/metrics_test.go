package compose

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// onThePage are the metrics that the page of the whole node must have.
var onThePage = []string{
	`quartet_up{service="configmux"} 1`, `quartet_up{service="pleg"} 1`, `quartet_up{service="syncloop"} 1`, `quartet_up{service="nodestatus"} 1`,
	`kubelet_running_pods{service="syncloop"}`, `kubelet_pleg_relist_duration_seconds_count{service="pleg"}`,
}

// metrics uses an available image instead of Prometheus', which cannot be pulled everywhere; only its network matters.
func metrics(s *stack) {
	with := *s
	with.env = append(slices.Clone(s.env), "COMPOSE_PROFILES=bundled,tracing,dashboards",
		"PROMETHEUS_IMAGE="+s.jaegerImage, "PROMETHEUS_PORT="+freePort(s.t))
	with.compose("up", "--detach", "--no-recreate", "prometheus", "metrics")
	id := with.containers("prometheus")[0]
	with.expectUser("metrics", "10245:10240")
	var page string
	var err error
	s.await("the page is served", func() bool {
		page, err = getIn("/proc/"+s.inspect(id, "{{.State.Pid}}")+"/ns/net", "http://127.0.0.1:10256/metrics")
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	for name, page := range map[string]string{"the page for Prometheus": page, "quartet metrics": s.quartet("metrics")} {
		for _, want := range onThePage {
			if !strings.Contains(page, want) {
				s.t.Errorf("%s lacks %s", name, want)
			}
		}
	}
	address := s.inspect(id, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
	if conn, err := net.Dial("tcp", net.JoinHostPort(address, "10256")); err == nil {
		s.t.Errorf("the page can be reached from outside, at %s", conn.RemoteAddr())
	}
	with.compose("rm", "--stop", "--force", "metrics", "prometheus")
}

// getIn requests a page from within a network namespace.
func getIn(namespace, url string) (string, error) {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		dialed := make(chan result, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Setns(fd, unix.CLONE_NEWNET)
			}
			if err != nil {
				dialed <- result{nil, err}
				return
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			dialed <- result{conn, err}
		}()
		r := <-dialed
		return r.conn, r.err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close() //nolint:errcheck // the body was only read
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}
