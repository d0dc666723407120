package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/metrics"
)

const (
	// scrapeTimeout bounds a service's answer: half of the shortest usual scrape timeout. The services are scraped in
	// parallel, so that a hanging one does not delay the others.
	scrapeTimeout = 5 * time.Second
)

// node is the services of one node, with metrics sockets below one directory.
type node struct {
	socketDir string
	// stateDir is the state directory; empty if only the sockets are known.
	stateDir string
}

// services returns the services that run on this machine.
func (n *node) services() []layout.Service {
	if _, elsewhere := n.elsewhere(layout.ConfigMux); !elsewhere {
		return layout.Services()
	}
	return slices.DeleteFunc(layout.Services(), func(s layout.Service) bool { return s == layout.ConfigMux })
}

// elsewhere returns the address of a configmux on another machine that the node follows instead of one of its own.
func (n *node) elsewhere(service layout.Service) (address string, found bool) {
	if n.stateDir == "" || service != layout.ConfigMux {
		return "", false
	}
	at, found := target.ConfigmuxElsewhere(n.stateDir)
	return at.Address, found
}

// ofService marks the metrics of the services.
var ofService = metrics.Merger{
	Label: "service", Up: "quartet_up", Help: "1 if the service answered this request, 0 if it did not.",
}

// ask scrapes a path of the services in parallel, and returns their answers in the order of services.
func (n *node) ask(ctx context.Context, path string, services []layout.Service) []metrics.Answer {
	answers := make([]metrics.Answer, len(services))
	var running sync.WaitGroup
	for i, service := range services {
		running.Go(func() {
			families, err := n.scrape(ctx, path, service)
			answers[i] = metrics.Answer{Process: string(service), Families: families, Err: err}
		})
	}
	running.Wait()
	return answers
}

// scrape scrapes one service. Its error is one line with the service and the remedy.
func (n *node) scrape(ctx context.Context, path string, service layout.Service) ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	socket := layout.MetricsSocketIn(n.socketDir, service)
	families, err := metrics.Scrape(ctx, "unix://"+socket, path)
	if err == nil {
		return families, nil
	}
	var network *net.OpError
	address, elsewhere := n.elsewhere(service)
	switch {
	case elsewhere:
		return nil, fmt.Errorf("%s: it runs elsewhere, at %s: run the command on its machine", service, address)
	case errors.Is(err, fs.ErrPermission), closedAtOnce(err):
		// A service closes the connection of an unauthorized user before it has read anything.
		return nil, fmt.Errorf(
			"%s: no metrics from %s: this user may not: run the command as root, or name the user in the service's --observe-uids",
			service,
			socket,
		)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%s: no metrics from %s within %s: check its log", service, socket, scrapeTimeout)
	case errors.As(err, &network) && network.Op == "dial":
		return nil, fmt.Errorf(
			"%s: no metrics from %s: it does not run, or its --metrics-listen names another address",
			service,
			socket,
		)
	default:
		return nil, fmt.Errorf("%s: no metrics from %s: %w", service, socket, err)
	}
}

// closedAtOnce reports whether an error says that the other end has closed the connection without an answer. net/http
// does not export its error for a connection that was closed before the request was written.
func closedAtOnce(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection")
}
