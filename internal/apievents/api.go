package apievents

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// requestTimeout is how long the API server has for a request: an event that waits delays no other work, but all other events.
const requestTimeout = 10 * time.Second

// ClientConfig is how the API server is reached for events: by a client of its own, with the limits that eventRecordQPS and eventBurst
// set. As for the kubelet an eventRecordQPS of 0 is no limit.
func ClientConfig(service nodeconfig.Service, cfg nodeconfig.Config) apiclient.Config {
	out := apiclient.ConfigOf(service, cfg)
	out.QPS, out.Burst, out.Timeout = ptr.Deref(cfg.Kubelet.EventRecordQPS, 0), cfg.Kubelet.EventBurst, requestTimeout
	if out.QPS == 0 {
		out.QPS = -1
	}
	return out
}

// API takes events. Errors are those of an API server, or of the way to it.
type API interface {
	// Create makes an event.
	Create(ctx context.Context, event *v1.Event) error
	// Patch changes an event by a strategic merge patch.
	Patch(ctx context.Context, namespace, name string, patch []byte) error
}

// APIServer is the API of a client for core/v1.
func APIServer(core rest.Interface) API { return apiServer{core} }

type apiServer struct{ core rest.Interface }

// Create implements API. What the API server asks to be waited for is not waited for in here.
func (a apiServer) Create(ctx context.Context, event *v1.Event) error {
	return a.core.Post().Namespace(event.Namespace).Resource("events").MaxRetries(0).Body(event).Do(ctx).Error()
}

// Patch implements API.
func (a apiServer) Patch(ctx context.Context, namespace, name string, patch []byte) error {
	return a.core.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(name).MaxRetries(0).Body(patch).Do(ctx).Error()
}

// repeated is what changes of an event that happens again.
type repeated struct {
	Message       string      `json:"message"`
	Count         int32       `json:"count"`
	LastTimestamp metav1.Time `json:"lastTimestamp"`
}

// put has the API server know an event. One that has happened before is there, unless nobody could be told, or the API server has
// forgotten it; one that is new is there only when the answer to an earlier request was lost.
func (s *Sender) put(ctx context.Context, event *v1.Event) error {
	if event.Count <= 1 {
		err := s.cfg.API.Create(ctx, event)
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		return s.patch(ctx, event)
	}
	err := s.patch(ctx, event)
	if !apierrors.IsNotFound(err) {
		return err
	}
	return s.cfg.API.Create(ctx, event)
}

func (s *Sender) patch(ctx context.Context, event *v1.Event) error {
	data, err := json.Marshal(repeated{Message: event.Message, Count: event.Count, LastTimestamp: event.LastTimestamp})
	if err != nil {
		return err
	}
	return s.cfg.API.Patch(ctx, event.Namespace, event.Name, data)
}

// failure is what an error says of sending the same again.
type failure int

const (
	// away: it may work later, as for any other event.
	away failure = iota
	// failsByItself: it may work later, and may be this event's fault.
	failsByItself
	// refused: it will never work.
	refused
)

func kindOf(err error) failure {
	var status apierrors.APIStatus
	var construction *rest.RequestConstructionError
	switch {
	case errors.As(err, &construction), apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause),
		apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err), apierrors.IsRequestEntityTooLargeError(err):
		return refused
	case !errors.As(err, &status), apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err), apierrors.IsServerTimeout(err),
		apierrors.IsTimeout(err), apierrors.IsUnauthorized(err): // a certificate that has expired is replaced
		return away
	default:
		return failsByItself
	}
}

// asked is how long the API server has asked to be left alone; 0 when it has not.
func asked(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}
