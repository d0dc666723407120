package kubeletapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/healthz"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// reads serves the paths that both servers have.
type reads struct{ Config }

func (h reads) pods(w http.ResponseWriter, _ *http.Request) {
	all, err := h.Pods.Pods()
	if err != nil {
		failed(w, err)
		return
	}
	h.writeJSON(w, podList(all))
}

// podList returns a PodList of pods; an empty list is not null in JSON.
func podList(pods []*v1.Pod) *v1.PodList {
	list := &v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: make([]v1.Pod, 0, len(pods))}
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	return list
}

// failed answers that the pods are not known yet, or with another error that is not the client's fault.
func failed(w http.ResponseWriter, err error) {
	var notReady *podstore.NotReadyError
	if errors.As(err, &notReady) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

func (h reads) writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		h.Logger.Debug("an answer of the HTTP API could not be written", telemetry.KeyError, err)
	}
}

func (h reads) writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if _, err := w.Write([]byte(text)); err != nil {
		h.Logger.Debug("an answer of the HTTP API could not be written", telemetry.KeyError, err)
	}
}

// logCheck fails while the log cannot be written.
func (h reads) logCheck() healthz.Check {
	return healthz.Check{Name: "log", Do: func() error { return telemetry.LogBlocked(h.Logger) }}
}

// loopCheck fails while the sync loop makes no progress.
func (h reads) loopCheck() healthz.Check {
	return healthz.Check{Name: "syncloop", Do: func() error {
		if health := h.Health(); !health.Healthy {
			return errors.New(strings.Join(health.Reasons, "; "))
		}
		return nil
	}}
}
