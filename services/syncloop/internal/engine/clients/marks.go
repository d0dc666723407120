package clients

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// errNoToken is returned when pleg on another machine does not answer with tokens.
var errNoToken = errors.New("pleg on another machine is of an earlier version, which cannot say how new an observation " +
	"is: upgrade it")

// marks relates the clock of this machine to that of pleg on another one, without comparing them. What this process did
// before it sent a request was done before pleg has made the token of the answer. So an observation that began after
// the token is newer than everything that was done before the request.
type marks struct {
	// now is the clock of this machine.
	now func() time.Duration

	mu sync.Mutex
	// last is the latest request for an inspection that was answered.
	last mark
}

// mark is a request that was answered.
type mark struct {
	sent  time.Duration
	token []byte
}

// since returns a mark after a time, if there is one.
func (m *marks) since(moment time.Duration) (mark, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.last.sent > moment
}

func (m *marks) note(one mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if one.sent > m.last.sent {
		m.last = one
	}
}

// getRemote is GetPodStatus of a pleg on another machine. The observation has a time of this machine's clock: one
// before it began.
func (p *PLEG) getRemote(
	ctx context.Context, uid types.UID, newerThan time.Duration,
) (*lifecyclev1.PodStatus, error) {
	request := &lifecyclev1.GetPodStatusRequest{Uid: string(uid)}
	sent, began := p.marks.now(), time.Duration(0)
	if newerThan > 0 {
		if mark, ok := p.marks.since(newerThan); ok {
			request.NewerThan, began = mark.token, mark.sent
		} else {
			request.NewerThanRequest, began = true, sent
		}
	}
	answer, err := p.client.GetPodStatus(ctx, request, grpc.WaitForReady(true))
	switch {
	case err != nil:
		return nil, err
	case len(answer.GetToken()) == 0:
		return nil, errNoToken
	}
	if request.GetNewerThanRequest() { // otherwise an earlier mark is new enough, and more of the record fits it
		p.marks.note(mark{sent: sent, token: answer.GetToken()})
	}
	observed := answer.GetStatus()
	if observed != nil {
		observed.ObservedBoottimeNs = began.Nanoseconds()
	}
	return observed, nil
}

// withoutClock removes the time of another machine's clock from the status of an event, so that a worker that has
// written asks for a newer one.
func (p *PLEG) withoutClock(event *lifecyclev1.Event) *lifecyclev1.Event {
	if p.marks != nil && event.GetStatus() != nil {
		event.Status.ObservedBoottimeNs = 0
	}
	return event
}
