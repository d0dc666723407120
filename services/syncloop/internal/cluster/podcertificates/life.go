package podcertificates

import (
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
)

const (
	// maxJitter is by how much later than the signer says a certificate is replaced, at most, so that pods which were
	// started together do not ask together: the kubelet's number.
	maxJitter = 5 * time.Minute
	// overdueAfter is how long after it was to be replaced a certificate is overdue: the kubelet's number.
	overdueAfter = 10 * time.Minute
)

// After a failure a certificate is asked for again after retryFirst, then after twice as long each time up to
// retryMost.
const (
	retryFirst = 10 * time.Second
	retryMost  = 2 * time.Minute
)

// lookAgain is how often times are looked at in any case: the machine may have slept, or its clock been set.
const lookAgain = time.Minute

// State is what has become of a certificate that a pod is to have, in the kubelet's words.
type State string

// The states of a certificate.
const (
	NotYetIssued      State = "not_yet_issued"
	Fresh             State = "fresh"
	OverdueForRefresh State = "overdue_for_refresh"
	Expired           State = "expired"
	Denied            State = "denied"
	Failed            State = "failed"
)

// held is what there is of a certificate that a pod is to have. It is not safe for use from several goroutines.
type held struct {
	// pod is the pod as it was when it asked last, signer who signs.
	pod    *v1.Pod
	signer string
	// key and chain are what the pod has, PEM each; nil before the first is issued. refreshAt is when the next one is
	// asked for.
	key, chain          []byte
	refreshAt, notAfter time.Time
	// asked is the request that is waited for; nil when there is none.
	asked *request
	// refusal is why there will be none, of the state refused; nil when there may be one.
	refusal *refusal
	// notBefore is when the API server may be asked again after failures, of which there were so many.
	notBefore time.Time
	failures  int
	// tellAt is when the pod is told next that it has to ask; zero is never.
	tellAt time.Time
	// saidOverdue and saidExpired are true when that event was told of this certificate.
	saidOverdue, saidExpired bool
}

// request is a request of ours at the API server.
type request struct {
	// name is "NAMESPACE/NAME".
	name string
	key  []byte
	made time.Time
}

// refusal is a signer's last word.
type refusal struct {
	state           State
	name            string
	reason, message string
}

// Error implements error.
func (r *refusal) Error() string {
	return fmt.Sprintf("the request %s was %s for good, by the reason %q: %q; delete the pod once that is mended", r.name, r.state, r.reason, r.message)
}

// asks tells whether the API server is to be asked now for a certificate, the first or another one.
func (h *held) asks(now time.Time) bool {
	return h.asked == nil && h.refusal == nil && !now.Before(h.notBefore) && (h.chain == nil || !now.Before(h.refreshAt))
}

// state is what has become of it.
func (h *held) state(now time.Time) State {
	switch {
	case h.refusal != nil:
		return h.refusal.state
	case h.chain == nil:
		return NotYetIssued
	case now.After(h.notAfter):
		return Expired
	case now.After(h.refreshAt.Add(overdueAfter)):
		return OverdueForRefresh
	}
	return Fresh
}

// putOff notes that the API server could not be asked, or that the request has vanished.
func (h *held) putOff(now time.Time) {
	pause := retryFirst
	for range h.failures {
		pause = min(2*pause, retryMost)
	}
	h.failures++
	h.asked, h.notBefore = nil, now.Add(pause)
	h.tellAt = h.notBefore
}

// heard notes what a signer says of the request that is waited for, and tells whether that is something.
func (h *held) heard(s *certificatesv1.PodCertificateRequestStatus, jitter float64) bool {
	for _, c := range s.Conditions {
		switch c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			h.refuse(Denied, c.Reason, c.Message)
			return true
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			h.refuse(Failed, c.Reason, c.Message)
			return true
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			if s.BeginRefreshAt == nil || s.NotAfter == nil {
				h.refuse(Failed, "NoTimes", "the certificate was issued without beginRefreshAt or notAfter")
				return true
			}
			*h = held{
				pod: h.pod, signer: h.signer, key: h.asked.key, chain: cleanChain(s.CertificateChain), notAfter: s.NotAfter.Time,
				refreshAt: s.BeginRefreshAt.Add(time.Duration(jitter * float64(maxJitter))),
			}
			h.tellAt = h.refreshAt
			return true
		}
	}
	return false
}

func (h *held) refuse(state State, reason, message string) {
	h.refusal = &refusal{state: state, name: h.asked.name, reason: reason, message: message}
	h.asked, h.tellAt = nil, time.Time{}
}

// event is what is to be told of a certificate that is late, once each; empty when nothing is.
func (h *held) event(now time.Time) (reason, message string) {
	switch state := h.state(now); {
	case h.chain == nil:
	case state == Expired && !h.saidExpired:
		h.saidExpired, h.saidOverdue = true, true
		return "CertificateExpired", fmt.Sprintf("The certificate of the signer %s expired at %s, and there is no other one yet", h.signer, h.notAfter.UTC().Format(time.RFC3339))
	case state == OverdueForRefresh && !h.saidOverdue:
		h.saidOverdue = true
		return "CertificateOverdueForRefresh", fmt.Sprintf("The certificate of the signer %s was to be replaced at %s, and there is no other one yet", h.signer, h.refreshAt.UTC().Format(time.RFC3339))
	}
	return "", ""
}
