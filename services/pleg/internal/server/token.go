package server

import (
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// tokens makes and reads the tokens by which callers on other machines say how new an observation must be. A token is
// EPOCH/NANOSECONDS: the run of this process, and the time in its own clock. Only the process that has made it compares
// it, so the clocks of two machines are never compared.
type tokens struct {
	epoch string
	now   func() time.Duration
}

func newTokens(now func() time.Duration) tokens { return tokens{epoch: rand.Text(), now: now} }

// at returns the token of a time.
func (t tokens) at(moment time.Duration) []byte {
	return strconv.AppendInt([]byte(t.epoch+"/"), int64(moment), 10)
}

// newerThan returns the time in the clock of this process after which the inspection for a request must have begun; 0
// accepts the record. arrived is the time of the request's arrival.
func (t tokens) newerThan(req *lifecyclev1.GetPodStatusRequest, arrived time.Duration) (time.Duration, error) {
	token := req.GetNewerThan()
	switch {
	case req.GetNewerThanRequest():
		return arrived, nil
	case len(token) > 0:
		return t.parse(token, arrived)
	default:
		return bootTime(req.GetNewerThanBoottimeNs())
	}
}

// bootTime returns a time of a caller on this machine.
func bootTime(nanoseconds int64) (time.Duration, error) {
	if nanoseconds < 0 {
		return 0, status.Error(
			codes.InvalidArgument,
			"newer_than_boottime_ns is negative: take it from CLOCK_BOOTTIME, or leave it out",
		)
	}
	return time.Duration(nanoseconds), nil
}

// parse returns the time of a token. One of another process was handed out before the request has arrived.
func (t tokens) parse(token []byte, arrived time.Duration) (time.Duration, error) {
	epoch, number, found := strings.Cut(string(token), "/")
	nanoseconds, err := strconv.ParseInt(number, 10, 64)
	if !found || epoch == "" || err != nil || nanoseconds <= 0 {
		return 0, status.Error(codes.InvalidArgument, "newer_than is no token: take one from an answer or an event of pleg")
	}
	if epoch != t.epoch {
		return arrived, nil
	}
	return min(time.Duration(nanoseconds), arrived), nil
}
