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

// requestTimeout bounds each request. A slow request delays all other events, but no other work.
const requestTimeout = 10 * time.Second

// ClientConfig returns the configuration of the client for events. It has its own limits, eventRecordQPS and
// eventBurst. As for the kubelet, an eventRecordQPS of 0 means no limit.
func ClientConfig(service nodeconfig.Service, cfg nodeconfig.Config) apiclient.Config {
	out := apiclient.ConfigOf(service, cfg)
	out.QPS, out.Burst, out.Timeout = ptr.Deref(cfg.Kubelet.EventRecordQPS, 0), cfg.Kubelet.EventBurst, requestTimeout
	if out.QPS == 0 {
		out.QPS = -1
	}
	return out
}

// API writes events. It returns errors of the API server or of the connection.
type API interface {
	// Create creates an event.
	Create(ctx context.Context, event *v1.Event) error
	// Patch changes an event with a strategic merge patch.
	Patch(ctx context.Context, namespace, name string, patch []byte) error
}

// APIServer returns the API that uses a client for core/v1.
func APIServer(core rest.Interface) API { return apiServer{core} }

type apiServer struct{ core rest.Interface }

// Create implements API. It does not retry: the Sender honors Retry-After.
func (a apiServer) Create(ctx context.Context, event *v1.Event) error {
	return a.core.Post().Namespace(event.Namespace).Resource("events").MaxRetries(0).Body(event).Do(ctx).Error()
}

// Patch implements API.
func (a apiServer) Patch(ctx context.Context, namespace, name string, patch []byte) error {
	return a.core.Patch(types.StrategicMergePatchType).
		Namespace(namespace).
		Resource("events").
		Name(name).
		MaxRetries(0).
		Body(patch).
		Do(ctx).
		Error()
}

// repeated holds the fields of an event that change when it repeats.
type repeated struct {
	Message       string      `json:"message"`
	Count         int32       `json:"count"`
	LastTimestamp metav1.Time `json:"lastTimestamp"`
}

// put writes an event to the API server. An event that has repeated usually exists there and is patched; it is created
// if it was never sent or has expired. A new event exists only if the response to an earlier request was lost; then it
// is patched.
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

// failure classifies an error by what a retry would do.
type failure int

const (
	// away: the API server is unavailable; a retry may succeed.
	away failure = iota
	// failsByItself: a retry may succeed, but this event may be the cause.
	failsByItself
	// refused: a retry never succeeds.
	refused
)

func kindOf(err error) failure {
	var status apierrors.APIStatus
	var construction *rest.RequestConstructionError
	switch {
	case errors.As(err, &construction), apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause),
		apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err),
		apierrors.IsRequestEntityTooLargeError(err):
		return refused
	case !errors.As(err, &status),
		apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err),
		apierrors.IsServerTimeout(err),
		apierrors.IsTimeout(err),
		apierrors.IsUnauthorized(err): // an expired certificate is replaced
		return away
	default:
		return failsByItself
	}
}

// retryAfter returns the Retry-After delay of an error; 0 if it has none.
func retryAfter(err error) time.Duration {
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		return time.Duration(seconds) * time.Second
	}
	return 0
}
