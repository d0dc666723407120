package images

import (
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// hidden stands for a secret in the text of an error.
	hidden = "[credential]"
	// shortSecret is what is not cut out, in bytes: where it was would tell what it is.
	shortSecret = 4
	// allHidden stands for a whole text with such a secret.
	allHidden = "the error has a credential in it and is not shown: ask the registry by hand"
)

// withoutSecrets leaves passwords and tokens out of the error of a pull that was made with them: a registry, or a proxy
// before it, may answer with what it was sent. The user's name is no secret. The gRPC code stays.
func withoutSecrets(err error, auth *runtimeapi.AuthConfig) error {
	if err == nil || auth == nil {
		return err
	}
	whole := err.Error()
	clean := cutSecrets(whole, auth)
	if clean == whole {
		return err
	}
	if s, ok := status.FromError(err); ok {
		return status.Error(s.Code(), cutSecrets(s.Message(), auth))
	}
	return errors.New(clean)
}

func cutSecrets(text string, auth *runtimeapi.AuthConfig) string {
	for _, secret := range spellings(auth) {
		if !strings.Contains(text, secret) {
			continue
		}
		if len(secret) < shortSecret {
			return allHidden
		}
		text = strings.ReplaceAll(text, secret, hidden)
	}
	return text
}

// spellings are the secrets in all ways in which they are written on their way to a registry and back, the longest
// first, so that no part of one is left.
func spellings(auth *runtimeapi.AuthConfig) []string {
	var all []string
	add := func(secret string) {
		if secret == "" {
			return
		}
		quoted := strconv.Quote(secret)
		all = append(all, secret, quoted[1:len(quoted)-1], url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword("", secret).String()[1:])
	}
	for _, secret := range []string{auth.GetPassword(), auth.GetAuth(), auth.GetIdentityToken(), auth.GetRegistryToken()} {
		add(secret)
	}
	if auth.GetPassword() != "" {
		both := []byte(auth.GetUsername() + ":" + auth.GetPassword())
		add(base64.RawStdEncoding.EncodeToString(both))
		add(base64.RawURLEncoding.EncodeToString(both))
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(all)
}
