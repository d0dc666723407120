package podcertificates

import (
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
)

const (
	// maxJitter is the maximum delay after the time at which the signer wants a certificate replaced, so that pods that
	// were started together do not send requests together. It is the kubelet's number.
	maxJitter = 5 * time.Minute
	// overdueAfter is how long after its planned replacement a certificate counts as overdue. It is the kubelet's number.
	overdueAfter = 10 * time.Minute
)

// After a failure a certificate is requested again after retryFirst, then after twice as long each time up to
// retryMost.
const (
	retryFirst = 10 * time.Second
	retryMost  = 2 * time.Minute
)

// lookAgain is how often times are checked in any case, because the machine may have slept or its clock may have been
// set.
const lookAgain = time.Minute

// State is the state of a certificate of a pod, in the kubelet's words.
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

// held is the state of a certificate of a pod. It is not safe for concurrent use.
type held struct {
	// pod is the pod at its last request, signer the name of the signer.
	pod    *v1.Pod
	signer string
	// key and chain are the current PEM data; nil before the first certificate is issued. refreshAt is when the next one
	// is requested.
	key, chain          []byte
	refreshAt, notAfter time.Time
	// pending is the pending request; nil if there is none.
	pending *request
	// refusal is the signer's refusal; nil if there is none.
	refusal *refusal
	// notBefore is the time of the next request after failures, which failures counts.
	notBefore time.Time
	failures  int
	// notifyAt is the next time at which the pod is notified to ask again; zero means never.
	notifyAt time.Time
	// overdueRecorded and expiredRecorded are true if that event was recorded for this certificate.
	overdueRecorded, expiredRecorded bool
}

// request is a request of this node in the API server.
type request struct {
	// name is "NAMESPACE/NAME".
	name string
	key  []byte
	made time.Time
}

// refusal is a final refusal of a signer.
type refusal struct {
	state           State
	name            string
	reason, message string
}

// Error implements error.
func (r *refusal) Error() string {
	return fmt.Sprintf("the request %s was %s for good, by the reason %q: %q; delete the pod once that is mended", r.name, r.state, r.reason, r.message)
}

// mustRequest reports whether a certificate must be requested now, the first or another one.
func (h *held) mustRequest(now time.Time) bool {
	return h.pending == nil && h.refusal == nil && !now.Before(h.notBefore) && (h.chain == nil || !now.Before(h.refreshAt))
}

// state returns the state of the certificate.
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

// putOff delays the next request after a failure, or after the request was deleted.
func (h *held) putOff(now time.Time) {
	pause := retryFirst
	for range h.failures {
		pause = min(2*pause, retryMost)
	}
	h.failures++
	h.pending, h.notBefore = nil, now.Add(pause)
	h.notifyAt = h.notBefore
}

// receive handles the signer's answer to the pending request, and reports whether it changed anything.
func (h *held) receive(s *certificatesv1.PodCertificateRequestStatus, jitter float64) bool {
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
				pod: h.pod, signer: h.signer, key: h.pending.key, chain: cleanChain(s.CertificateChain), notAfter: s.NotAfter.Time,
				refreshAt: s.BeginRefreshAt.Add(time.Duration(jitter * float64(maxJitter))),
			}
			h.notifyAt = h.refreshAt
			return true
		}
	}
	return false
}

func (h *held) refuse(state State, reason, message string) {
	h.refusal = &refusal{state: state, name: h.pending.name, reason: reason, message: message}
	h.pending, h.notifyAt = nil, time.Time{}
}

// event returns the event for a late certificate, once for each kind; empty if there is none.
func (h *held) event(now time.Time) (reason, message string) {
	switch state := h.state(now); {
	case h.chain == nil:
	case state == Expired && !h.expiredRecorded:
		h.expiredRecorded, h.overdueRecorded = true, true
		return "CertificateExpired", fmt.Sprintf("The certificate of the signer %s expired at %s, and there is no other one yet", h.signer, h.notAfter.UTC().Format(time.RFC3339))
	case state == OverdueForRefresh && !h.overdueRecorded:
		h.overdueRecorded = true
		return "CertificateOverdueForRefresh", fmt.Sprintf("The certificate of the signer %s was to be replaced at %s, and there is no other one yet", h.signer, h.refreshAt.UTC().Format(time.RFC3339))
	}
	return "", ""
}
