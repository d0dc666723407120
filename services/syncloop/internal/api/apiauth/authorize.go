package apiauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// maxRetries is how often a request is retried that the API server answered with 429 and Retry-After. Timeout usually
// ends it before.
const maxRetries = 3

// authorize reports whether a user may access one of the Node's subresources with a verb. It fails if no access is
// allowed and at least one could not be checked.
func (g *Guard) authorize(ctx context.Context, user User, verb string, subresources []string) (bool, error) {
	if g.cfg.Access == nil {
		return true, nil
	}
	var errs []error
	for _, subresource := range subresources {
		allowed, err := g.mayAccess(ctx, user, verb, subresource)
		if allowed {
			return true, nil
		}
		errs = append(errs, err)
	}
	return false, errors.Join(errs...)
}

func (g *Guard) mayAccess(ctx context.Context, user User, verb, subresource string) (bool, error) {
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Name, UID: user.UID, Groups: user.Groups,
		Extra: make(map[string]authorizationv1.ExtraValue, len(user.Extra)),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: g.cfg.NodeName,
		},
	}
	for key, values := range user.Extra {
		spec.Extra[key] = values
	}
	// The keys are sorted, so that equal questions have equal texts.
	question, err := json.Marshal(spec)
	if err != nil {
		return false, fmt.Errorf("asking whether an access is allowed: %w", err)
	}
	allowed, err := g.accesses.get(ctx, string(question), user.Name, func(ctx context.Context) (answer[bool], error) {
		review := &authorizationv1.SubjectAccessReview{Spec: spec}
		var reviewed authorizationv1.SubjectAccessReview
		request := g.cfg.Access.Post().Resource("subjectaccessreviews").Body(review).MaxRetries(maxRetries)
		if err := request.Do(ctx).Into(&reviewed); err != nil {
			return answer[bool]{}, fmt.Errorf("asking whether %s may %s nodes/%s: %w", user.Name, verb, subresource, err)
		}
		if reviewed.Status.Allowed && !reviewed.Status.Denied {
			return answer[bool]{value: true, good: true, ttl: g.cfg.AllowedTTL}, nil
		}
		return answer[bool]{ttl: g.cfg.DeniedTTL}, nil
	})
	if err != nil {
		return false, &reason{text: "the API server, which authorizes requests, has not answered", cause: err}
	}
	return allowed, nil
}
