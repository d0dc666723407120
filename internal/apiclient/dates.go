package apiclient

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Exchange is when a request was sent and answered by the clock of this machine, and when it was answered by the API server's,
// which says it to the second.
type Exchange struct {
	Sent, Answered time.Time
	Date           time.Time
}

// dated tells of each answer that has a date.
type dated struct {
	next http.RoundTripper
	told *atomic.Pointer[func(Exchange)]
}

// OnAnswer has told be called of each answer from now on, when both clocks are known; it must not block.
func (c *Client) OnAnswer(told func(Exchange)) { c.told.Store(&told) }

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := time.Now()
	response, err := d.next.RoundTrip(request)
	told := d.told.Load()
	if err != nil || told == nil {
		return response, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		(*told)(Exchange{Sent: sent, Answered: time.Now(), Date: date})
	}
	return response, nil
}

// WrappedRoundTripper lets idle connections be found and closed.
func (d dated) WrappedRoundTripper() http.RoundTripper { return d.next }
