package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// requestTimeout bounds Jaeger's answer, because a search may read a disk.
	requestTimeout = 20 * time.Second
	// bodyLimit bounds a response in bytes. A trace of this size has some 50,000 spans.
	bodyLimit = 64 << 20
	// searchLimit is the maximum number of traces of a search, the newest first.
	searchLimit = 20
	// lookback is the range of a search, because a pod may have started long ago.
	lookback = 30 * 24 * time.Hour
)

// errNoTrace is returned for a missing trace.
var errNoTrace = errors.New("there is no such trace")

// jaeger is a client of Jaeger's query API.
type jaeger struct {
	base *url.URL
	http *http.Client
}

// newJaeger validates the address of a Jaeger. It may have a path, as behind a proxy.
func newJaeger(address string, client *http.Client) (*jaeger, error) {
	base, err := url.Parse(address)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, fmt.Errorf("%q is not the address of a Jaeger: write it as %s", address, defaultJaeger)
	}
	return &jaeger{base: base, http: client}, nil
}

// link returns the URL of a trace for a person.
func (j *jaeger) link(id string) string {
	link := j.base.JoinPath("trace", id)
	link.User = nil
	return link.String()
}

// trace fetches one trace as it was sent, without Jaeger's adjustments of clocks, which its version 1 does not make in
// this API. It fails with errNoTrace when Jaeger does not have it.
func (j *jaeger) trace(ctx context.Context, id string) (trace, error) {
	traces, err := get(ctx, j, j.base.JoinPath("api", "v3", "traces", id), url.Values{"raw_traces": {"true"}}, decode)
	if reported := (*reportedError)(nil); errors.As(err, &reported) && reported.code == http.StatusNotFound {
		return trace{}, errNoTrace
	}
	if err != nil {
		return trace{}, err
	}
	if len(traces) == 0 {
		return trace{}, errNoTrace
	}
	return traces[0], nil
}

// search finds traces of a service that have a span with some attributes, begun in a time before now; operation is the
// span's name, empty for any. Version 3 of the API cannot search for attributes over HTTP, so version 1 says which
// traces there are.
func (j *jaeger) search(
	ctx context.Context,
	service, operation string,
	attributes map[string]string,
	now time.Time,
) ([]trace, error) {
	tags, err := json.Marshal(attributes)
	if err != nil {
		return nil, err
	}
	query := url.Values{
		"service": {service},
		"tags":    {string(tags)},
		"limit":   {strconv.Itoa(searchLimit)},
		"start": {
			strconv.FormatInt(now.Add(-lookback).UnixMicro(), 10),
		},
		"end": {strconv.FormatInt(now.Add(time.Minute).UnixMicro(), 10)},
	}
	if operation != "" {
		query.Set("operation", operation)
	}
	ids, err := get(ctx, j, j.base.JoinPath("api", "traces"), query, decodeIDs)
	if err != nil {
		return nil, err
	}
	traces := make([]trace, 0, len(ids))
	for _, id := range ids {
		t, err := j.trace(ctx, id)
		if errors.Is(err, errNoTrace) {
			continue // Jaeger has dropped it since
		}
		if err != nil {
			return nil, err
		}
		traces = append(traces, t)
	}
	return traces, nil
}

// get asks Jaeger and decodes its answer.
func get[T any](
	ctx context.Context,
	j *jaeger,
	address *url.URL,
	query url.Values,
	decode func([]byte) (T, error),
) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	address.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return answer, err
	}
	response, err := j.http.Do(request)
	if err != nil {
		return answer, j.unreachable(err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read as far as it is of use
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyLimit+1))
	switch {
	case err != nil:
		return answer, j.unreachable(err)
	case len(body) > bodyLimit:
		return answer, fmt.Errorf(
			"jaeger at %s answers with more than %d MiB: look at the trace in its user interface",
			j.base.Redacted(),
			bodyLimit>>20,
		)
	case isPage(response):
		return answer, fmt.Errorf(
			"%s answers with a web page, not with the API of Jaeger: give the address of Jaeger's query service with --jaeger, with the path in front of /api if there is one",
			j.base.Redacted(),
		)
	}
	answer, err = decode(body)
	return answer, j.explain(err, response, body)
}

func (j *jaeger) unreachable(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err // its text contains the address with its secrets
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("jaeger at %s has not answered within %s: see its log", j.base.Redacted(), requestTimeout)
	}
	return fmt.Errorf(
		"cannot reach Jaeger at %s: %w: start it (the compose stack has one), or give its address with --jaeger or %s",
		j.base.Redacted(),
		err,
		EnvJaeger,
	)
}

// isPage is true for what is meant for people.
func isPage(response *http.Response) bool {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && kind == "text/html"
}

// explain completes what is wrong with an answer: an error that Jaeger reports, that of a proxy, or no answer of
// Jaeger.
func (j *jaeger) explain(err error, response *http.Response, body []byte) error {
	reported := (*reportedError)(nil)
	switch {
	case errors.As(err, &reported):
		if reported.code == 0 {
			reported.code = response.StatusCode
		}
		return fmt.Errorf("jaeger at %s: %w", j.base.Redacted(), err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf(
			"jaeger at %s answers %s: %q: see its log, or give another address with --jaeger",
			j.base.Redacted(),
			response.Status,
			firstLine(body),
		)
	case err != nil:
		return fmt.Errorf("%s: %w: is it Jaeger's query service (port 16686)?", j.base.Redacted(), err)
	}
	return nil
}

// firstLine returns the beginning of an unexpected response.
func firstLine(body []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(body), []byte("\n"))
	return shorten(oneLine(strings.ToValidUTF8(string(line), "\uFFFD")), 100, "…")
}
