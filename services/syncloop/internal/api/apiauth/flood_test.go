package apiauth_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestAFloodOfWrongTokensDoesNotLockOutValidOnes checks a token that is known, but whose answer has expired, and a new
// one of another peer, while the reviews of many made-up tokens are hanging.
func TestAFloodOfWrongTokensDoesNotLockOutValidOnes(t *testing.T) {
	r := newRig(t, nil)
	r.api.allow = []string{"robot get pods"}
	r.want(200, "robot", goodToken, nil)
	hanging, end := make(chan struct{}, 1), make(chan struct{})
	var givenUp atomic.Int32
	r.api.breakBy(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		noError(t, err)
		if filepath.Base(req.URL.Path) == "tokenreviews" && bytes.Contains(body, []byte("made-up")) {
			select {
			case hanging <- struct{}{}:
			default:
			}
			select {
			case <-end:
			case <-req.Context().Done():
				givenUp.Add(1)
			}
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		r.api.answer(w, req)
	})
	var flood sync.WaitGroup
	refused := make(chan struct{}, 1)
	// 280 are asked or wait, 8 as new ones; a slow machine needs seconds for their connections, and each is given up 10 s
	// after its begin.
	for i := range 300 {
		flood.Go(func() {
			if _, body := r.getFrom("127.0.0.2", fmt.Sprintf("made-up-%d", i), nil); strings.Contains(body, "not answered") {
				select {
				case refused <- struct{}{}:
				default:
				}
			}
		})
	}
	<-hanging
	<-refused // the peer has as many questions as it may have
	r.clock.Step(3 * time.Minute)
	r.want(200, "robot", goodToken, nil)
	if code, body := r.getFrom("127.0.0.2", goodToken, nil); code != 200 {
		t.Errorf("got %d %q for a known token of the peer that sends wrong ones, want 200", code, body)
	}
	r.want(200, "robot", newToken, nil)
	if n := givenUp.Load(); n > 0 {
		t.Errorf("valid tokens were accepted when %d reviews of wrong ones had been given up, want before that", n)
	}
	close(end)
	flood.Wait()
}

// TestWrongTokensDoNotTakeTheReviewsOfOthers checks that the made-up tokens of one peer are reviewed slowly, so that
// the rate limit of the API client is left to others.
func TestWrongTokensDoNotTakeTheReviewsOfOthers(t *testing.T) {
	r := newRig(t, nil)
	r.want(401, "rejects the token", "made-up", nil)
	r.api.requests()
	begun := time.Now()
	var flood sync.WaitGroup
	for i := range 50 {
		flood.Go(func() { r.want(401, "", fmt.Sprintf("made-up-%d", i), nil) })
	}
	flood.Wait()
	// 16 at once, then 10 in a second.
	got := strings.Count(r.api.requests(), "tokenreviews")
	if most := 16 + 10*int(time.Since(begun)/time.Second+1); got > most {
		t.Errorf("%d reviews in %s, want at most %d", got, time.Since(begun), most)
	}
	r.api.allow = []string{"robot get pods"}
	if code, body := r.getFrom("127.0.0.2", goodToken, nil); code != 200 {
		t.Errorf("got %d %q for a valid token of another peer, want 200", code, body)
	}
}
