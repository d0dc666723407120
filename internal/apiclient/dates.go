package apiclient

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Exchange holds the times of one request: sent and answered by this machine's clock, and answered by the API server's
// clock, which has a resolution of one second.
type Exchange struct {
	Sent, Answered time.Time
	Date           time.Time
}

// dated reports each response that carries a date.
type dated struct {
	next     http.RoundTripper
	onAnswer *atomic.Pointer[func(Exchange)]
}

// OnAnswer registers a function that is called for each response whose times are known on both clocks. It must not
// block.
func (c *Client) OnAnswer(callback func(Exchange)) { c.onAnswer.Store(&callback) }

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := time.Now()
	response, err := d.next.RoundTrip(request)
	callback := d.onAnswer.Load()
	if err != nil || callback == nil {
		return response, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		(*callback)(Exchange{Sent: sent, Answered: time.Now(), Date: date})
	}
	return response, nil
}

// WrappedRoundTripper gives access to the transport below, so that idle connections can be closed.
func (d dated) WrappedRoundTripper() http.RoundTripper { return d.next }
