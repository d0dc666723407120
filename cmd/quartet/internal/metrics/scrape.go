package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// scrapeTimeout is how long a service has to answer: half of the shortest timeout that people give Prometheus. All
	// are asked at once, so one that hangs costs the others nothing.
	scrapeTimeout = 5 * time.Second
	// maxAnswer bounds one service's answer, in bytes. A full node's is some hundred kilobytes.
	maxAnswer = 32 << 20
	// acceptProto asks for the exact values rather than for their text.
	acceptProto = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;q=0.5"
)

// node is the services of one node, which serve their metrics on sockets in one directory.
type node struct {
	socketDir string
}

// answer is what a service said: its metrics, or why there are none.
type answer struct {
	service  layout.Service
	families []*dto.MetricFamily
	err      error
}

// ask asks services for what they serve at a path, at the same time, and returns their answers in the services' order.
func (n *node) ask(ctx context.Context, path string, services []layout.Service) []answer {
	answers := make([]answer, len(services))
	var running sync.WaitGroup
	for i, service := range services {
		running.Go(func() {
			families, err := n.scrape(ctx, path, service)
			answers[i] = answer{service: service, families: families, err: err}
		})
	}
	running.Wait()
	return answers
}

// scrape asks one service. Its error is one line, names the service and says what to do.
func (n *node) scrape(ctx context.Context, path string, service layout.Service) ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	socket := filepath.Join(n.socketDir, string(service)+"-metrics.sock")
	families, err := get(ctx, socket, path)
	if err == nil {
		return families, nil
	}
	var network *net.OpError
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		// A service closes the connection of a user whom it does not let in before it has read anything.
		return nil, fmt.Errorf("%s: no metrics from %s: this user may not: run the command as root, or name the user in the service's --allowed-uids", service, socket)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%s: no metrics from %s within %s: see its log", service, socket, scrapeTimeout)
	case errors.As(err, &network) && network.Op == "dial":
		return nil, fmt.Errorf("%s: no metrics from %s: it does not run, or its --metrics-listen names another address", service, socket)
	default:
		return nil, fmt.Errorf("%s: no metrics from %s: %w", service, socket, err)
	}
}

func get(ctx context.Context, socket, path string) (families []*dto.MetricFamily, err error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node"+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", acceptProto)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered %s", response.Status)
	}
	return decode(io.LimitReader(response.Body, maxAnswer), expfmt.ResponseFormat(response.Header))
}

func decode(body io.Reader, format expfmt.Format) ([]*dto.MetricFamily, error) {
	var families []*dto.MetricFamily
	for decoder := expfmt.NewDecoder(body, format); ; {
		family := &dto.MetricFamily{}
		switch err := decoder.Decode(family); {
		case errors.Is(err, io.EOF):
			return families, nil
		case err != nil:
			return nil, fmt.Errorf("its answer cannot be read: %w", err)
		}
		families = append(families, family)
	}
}
