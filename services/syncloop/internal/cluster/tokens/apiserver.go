package tokens

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// FromAPIServer has tokens made by an API server, which has to let this node do so: it does for the service accounts of
// the pods that are bound to the node. core is a client of core/v1 that knows authentication/v1, as that of package
// apiclient does.
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
