package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/quartet-node/quartet/internal/rpc"
)

const (
	// maxScrape bounds the response of one process, in bytes. That of a full node has some hundred kilobytes.
	maxScrape = 32 << 20
	// acceptProto requests exact values instead of their text.
	acceptProto = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;q=0.5"
)

// Scrape reads the metrics that a process of this machine serves at a path of its metrics address, a unix socket. The
// size of the response is bounded.
func Scrape(ctx context.Context, address, path string) (families []*dto.MetricFamily, err error) {
	if !strings.HasPrefix(address, "unix://") {
		return nil, fmt.Errorf("%q is not the address of a unix socket", address)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return rpc.Connect(ctx, address)
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
	return decode(http.MaxBytesReader(nil, response.Body, maxScrape), expfmt.ResponseFormat(response.Header))
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
