package podcertificates

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/reflector"
)

// resource is the resource name of requests.
const resource = "podcertificaterequests"

// APIServer is the API of a real API server, which allows a node these requests for the pods that are bound to it.
type APIServer struct {
	// Core is a client of core/v1, Certificates one of certificates/v1. Required.
	Core, Certificates rest.Interface
	// NodeName is the name of this node, whose requests are watched. Required.
	NodeName string
	// Clock is the time. Required.
	Clock clock.PassiveClock
}

// Account implements API.
func (a APIServer) Account(ctx context.Context, namespace, name string) (types.UID, error) {
	account := &v1.ServiceAccount{}
	err := a.Core.Get().Namespace(namespace).Resource("serviceaccounts").Name(name).Do(ctx).Into(account)
	return account.UID, err
}

// Create implements API.
func (a APIServer) Create(
	ctx context.Context, r *certificatesv1.PodCertificateRequest,
) (*certificatesv1.PodCertificateRequest, error) {
	made := &certificatesv1.PodCertificateRequest{}
	if err := a.Certificates.Post().Namespace(r.Namespace).Resource(resource).Body(r).Do(ctx).Into(made); err != nil {
		return nil, err
	}
	return made, nil
}

// Follow implements API.
func (a APIServer) Follow(ctx context.Context, to reflector.Handler) error {
	return reflector.Run(ctx, reflector.Config{
		Client: a.Certificates, Resource: resource, Fields: fields.OneTermEqualSelector("spec.nodeName", a.NodeName),
		Empty: &certificatesv1.PodCertificateRequest{}, Handler: to, Clock: a.Clock,
	})
}
