package site

import (
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
)

// uplink logs failed requests: each reason once, however many nodes are concerned, and when requests succeed again.
type uplink struct {
	logger *slog.Logger

	mu sync.Mutex
	// failures maps requests to the reason why the last one failed.
	failures map[string]string
}

// requested records the result of a request of pods.
func (u *uplink) requested(verb reflector.Verb, err error) { u.report("pods", verb, err) }

// report records the result of a request.
func (u *uplink) report(resource string, verb reflector.Verb, err error) {
	if err != nil && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
		return // the reflector lists again
	}
	request, text := string(verb)+" "+resource, ""
	if err != nil {
		text = apisource.Reason(err)
	}
	u.mu.Lock()
	last := u.failures[request]
	if u.failures[request] = text; text == "" {
		delete(u.failures, request)
	}
	u.mu.Unlock()
	switch {
	case last == text:
	case text == "":
		u.logger.Info("requests to the API server succeed again", "request", request)
	default:
		u.logger.Warn("a request to the API server failed; the nodes of the site keep their pods",
			"request", request, telemetry.KeyError, text)
	}
}
