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
	// hookHTTPTimeout is the time limit of an HTTP hook. It is the kubelet's.
	hookHTTPTimeout = 30 * time.Second
	// hookBodyLimit is the number of bytes that are read of a hook's response.
	hookBodyLimit = 10 << 10
	// maxRedirects is the number of redirects that a hook follows. It is the kubelet's.
	maxRedirects = 10
)

// hookClient sends the requests of HTTP hooks. It does not verify certificates, because pods have certificates of their
// own and are called by address. It keeps no connections, because each pod is called once.
var hookClient = &http.Client{
	Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
		DisableKeepAlives: true,
	},
	CheckRedirect: sameHost,
}

// sameHost follows redirects only to the same host: a pod must not make the node call other hosts. A redirect to
// another host is the hook's response, and any response is success.
func sameHost(next *http.Request, before []*http.Request) error {
	if next.URL.Hostname() != before[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(before) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// hook is a lifecycle hook to run.
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

// runHook runs a hook and returns when it or ctx has ended.
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
		return errors.New("a hook does not support tcpSocket: use exec, httpGet or sleep")
	}
	return errors.New("the hook has no action: set exec, httpGet or sleep")
}

// httpHook sends a hook's HTTP request. Any response is success, whatever its code, as in the kubelet. If the server
// answers HTTPS in plain text, httpHook retries with HTTP and records an event.
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
	err = sendHook(ctx, target, hookHeader(get.HTTPHeaders))
	if errors.Is(err, http.ErrSchemeMismatch) {
		target.Scheme = "http"
		header := hookHeader(get.HTTPHeaders)
		header.Del("Authorization") // plain text must not carry a credential
		if err = sendHook(ctx, target, header); err == nil {
			m.warn(ctx, h.pod, "", eventHookFallback,
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", target.Host))
		}
	}
	return err
}

// hookHeader returns the header of a hook's request: the hook's own fields and the defaults for missing ones.
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

func sendHook(ctx context.Context, target *url.URL, header http.Header) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	request.Header, request.Host = header, header.Get("Host")
	response, err := hookClient.Do(request)
	if err != nil {
		return fmt.Errorf("httpGet: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // the response's code does not matter
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
