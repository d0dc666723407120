package tokens

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// FromAPIServer returns an Issue that requests tokens from the API server. A node may request them for the service
// accounts of its pods. core is a client of core/v1 that can also decode authentication/v1, as the client of package
// apiclient.
func FromAPIServer(core rest.Interface) Issue {
	return func(ctx context.Context, namespace, account string, uid types.UID,
		spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error) {
		answer := &authenticationv1.TokenRequest{}
		err := core.Post().Namespace(namespace).Resource("serviceaccounts").Name(account).SubResource("token").
			Body(&authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: spec}).Do(ctx).Into(answer)
		if err != nil {
			return nil, err
		}
		return answer, nil
	}
}
