package executor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// hookHTTPTimeout bounds an HTTP hook, as the kubelet does.
	hookHTTPTimeout = 30 * time.Second
	// hookBodyLimit is how much of a hook's answer is read, in bytes, so that the connection can be reused.
	hookBodyLimit = 10 << 10
	// mostRedirects is how many redirects of a hook are followed, as the kubelet does.
	mostRedirects = 10
)

// hookClient makes the calls of HTTP hooks. Pods serve with certificates of their own and are asked by address, so there is
// no name to check a certificate against; connections are not kept, since each pod is asked once.
var hookClient = &http.Client{
	Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true,
	},
	CheckRedirect: sameHost,
}

// sameHost follows a redirect on the same host only: a pod must not have the node call others. The redirect to another host is
// the hook's answer, and any answer is success.
func sameHost(next *http.Request, before []*http.Request) error {
	if next.URL.Hostname() != before[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(before) >= mostRedirects {
		return fmt.Errorf("stopped after %d redirects", mostRedirects)
	}
	return nil
}

// hook is one lifecycle hook to run.
type hook struct {
	// name is postStart or preStop.
	name        string
	handler     *v1.LifecycleHandler
	pod         *v1.Pod
	container   string
	ports       []v1.ContainerPort
	containerID string
	ips         func(context.Context) ([]string, error)
}

// runHook runs a hook until it ends, or ctx does.
func (m *Manager) runHook(ctx context.Context, rt *tracedRuntime, h hook) (err error) {
	ctx, span := m.phase(ctx, "container.hook", h.pod, telemetry.Subject{Container: h.container, ContainerID: h.containerID})
	defer func() { telemetry.End(span, err) }()
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrHook.String(h.name))
	}
	switch {
	case h.handler.Exec != nil:
		return rt.execHook(ctx, h.containerID, h.handler.Exec.Command)
	case h.handler.Sleep != nil:
		timer := m.cfg.Clock.NewTimer(time.Duration(h.handler.Sleep.Seconds) * time.Second)
		defer timer.Stop()
		select {
		case <-timer.C():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case h.handler.HTTPGet != nil:
		return m.httpHook(ctx, h)
	case h.handler.TCPSocket != nil: // the API server accepts it for old manifests
		return errors.New("tcpSocket is no action of a hook: give exec, httpGet or sleep")
	}
	return errors.New("the hook names no action: give exec, httpGet or sleep")
}

// httpHook asks for the hook's address. Any answer is success, whatever its code: the kubelet's hooks are so. A server that
// answers HTTPS in plain text is asked again so, and an event tells of it.
func (m *Manager) httpHook(ctx context.Context, h hook) error {
	get := h.handler.HTTPGet
	port, err := hookPort(get.Port, h.ports)
	if err != nil {
		return err
	}
	host := get.Host
	if host == "" {
		ips, err := h.ips(ctx)
		if err != nil {
			return err
		}
		if len(ips) == 0 {
			return fmt.Errorf("httpGet: the pod has no address yet")
		}
		host = ips[0]
	}
	target, err := url.Parse("/" + strings.TrimPrefix(get.Path, "/"))
	if err != nil {
		return fmt.Errorf("httpGet.path: %w", err)
	}
	target.Scheme, target.Host = strings.ToLower(string(get.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
	if target.Scheme == "" {
		target.Scheme = "http"
	}
	ctx, cancel := context.WithTimeout(ctx, hookHTTPTimeout)
	defer cancel()
	err = askHook(ctx, target, hookHeader(get.HTTPHeaders))
	if errors.Is(err, http.ErrSchemeMismatch) {
		target.Scheme = "http"
		header := hookHeader(get.HTTPHeaders)
		header.Del("Authorization") // not for everyone to read
		if err = askHook(ctx, target, header); err == nil {
			m.warn(ctx, h.pod, "", eventHookFallback,
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", target.Host))
		}
	}
	return err
}

// hookHeader is the header of a hook's request: the hook's own, and what it leaves out.
func hookHeader(own []v1.HTTPHeader) http.Header {
	header := http.Header{}
	for _, h := range own {
		header.Add(h.Name, h.Value)
	}
	if _, ok := header["User-Agent"]; !ok {
		header.Set("User-Agent", "kube-lifecycle")
	}
	if _, ok := header["Accept"]; !ok {
		header.Set("Accept", "*/*")
	}
	return header
}

func askHook(ctx context.Context, target *url.URL, header http.Header) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	request.Header, request.Host = header, header.Get("Host")
	response, err := hookClient.Do(request)
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // the answer is known by then
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, hookBodyLimit)); err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	return nil
}

func hookPort(port intstr.IntOrString, ports []v1.ContainerPort) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	if port.StrVal == "" {
		return 80, nil
	}
	if n, err := strconv.Atoi(port.StrVal); err == nil {
		return n, nil
	}
	for _, p := range ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort), nil
		}
	}
	return 0, fmt.Errorf("httpGet.port: the container has no port named %q", port.StrVal)
}
