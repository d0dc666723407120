package csi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// tokensKey is the attribute, or the key of a secret, with the tokens of the pod's service account.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens" //nolint:gosec // it is a name

// tokenSeconds is the API server's default lifetime of a token.
const tokenSeconds = 3600

// secret returns the content of a secret for a volume; nothing if ref is nil. field is the name of the reference.
func (p *Plugin) secret(
	ctx context.Context, v *volume, field string, ref *v1.SecretReference,
) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	answered := volumes.Asking(ctx, "secret "+ref.Namespace+"/"+ref.Name)
	s, err := p.cfg.Cluster.Secret(ctx, ref.Namespace, ref.Name)
	answered()
	if err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s failed: %w", field, ref.Namespace, ref.Name, err)
	}
	v.used = append(v.used, s)
	values := map[string]string{}
	for key, value := range s.Data {
		values[key] = string(value)
	}
	return values, nil
}

// tellSecrets tells the cluster of the end of an attempt to mount or expand a volume: after a failure the pod waits for
// a change of the secrets that the attempt has used, because a driver seldom says that one of them is wrong.
func (p *Plugin) tellSecrets(v *volume, err error) {
	if err != nil {
		for _, secret := range v.used {
			p.cfg.Cluster.Refused(v.Pod.UID, secret)
		}
		return
	}
	for _, ref := range v.secretRefs() {
		p.cfg.Cluster.Accepted(v.Pod.UID, ref.Namespace, ref.Name)
	}
}

// podTokens returns the tokens of the pod's service account that the driver wants, and whether it wants them as
// secrets.
func (p *Plugin) podTokens(ctx context.Context, v *volume) (values map[string]string, asSecrets bool, err error) {
	if v.object == nil || len(v.object.Spec.TokenRequests) == 0 {
		return nil, false, nil
	}
	defer volumes.Asking(ctx, volumes.IssuedToken)()
	tokens := map[string]authenticationv1.TokenRequestStatus{}
	for _, request := range v.object.Spec.TokenRequests {
		seconds := int64(tokenSeconds)
		if request.ExpirationSeconds != nil {
			seconds = *request.ExpirationSeconds
		}
		token, err := p.cfg.Tokens.Token(ctx, v.Pod, request.Audience, seconds)
		if err != nil {
			return nil, false, fmt.Errorf("%s: mounter.SetUpAt failed to get service account token attributes: %w", pluginName, err)
		}
		tokens[request.Audience] = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: expiry(token)}
	}
	text, err := json.Marshal(tokens)
	if err != nil {
		return nil, false, err
	}
	asSecrets = v.object.Spec.ServiceAccountTokenInSecrets != nil && *v.object.Spec.ServiceAccountTokenInSecrets
	return map[string]string{tokensKey: string(text)}, asSecrets, nil
}

// expiry returns the end of the life of a token, which is a JSON web token; zero if it is none.
func expiry(token string) metav1.Time {
	parts := strings.Split(token, ".")
	if len(parts) < 2 {
		return metav1.Time{}
	}
	var claims struct {
		Exp int64 `json:"exp"`
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Exp == 0 {
		return metav1.Time{}
	}
	return metav1.NewTime(time.Unix(claims.Exp, 0).UTC())
}
