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
	// hidden replaces a secret in the text of an error.
	hidden = "[credential]"
	// shortSecret is the length in bytes below which a secret is not replaced, because its place would reveal it.
	shortSecret = 4
	// allHidden replaces a whole text with such a secret.
	allHidden = "the error contains a credential and is not shown: pull the image by hand to see it"
)

// withoutSecrets removes passwords and tokens from the error of a pull, because a registry or a proxy may return what
// it received. The user's name is not a secret. The gRPC code stays.
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

// spellings returns the secrets in all encodings in which they are sent to a registry and returned, the longest first,
// so that no part of a secret is left.
func spellings(auth *runtimeapi.AuthConfig) []string {
	var all []string
	add := func(secret string) {
		if secret == "" {
			return
		}
		quoted := strconv.Quote(secret)
		all = append(all, secret, quoted[1:len(quoted)-1])
		all = append(all, url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword("", secret).String()[1:])
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
