package imagecredentials_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
)

const (
	byToken   = kubeletconfigv1.TokenServiceAccountTokenCacheType
	byAccount = kubeletconfigv1.ServiceAccountServiceAccountTokenCacheType
)

func TestAPluginIsGivenATokenOfThePodsServiceAccount(t *testing.T) {
	provider := withToken(byToken, true)
	provider.TokenAttributes.RequiredServiceAccountAnnotationKeys = []string{"role"}
	r := newRig(t, provider)
	r.want(newPod("u1", "robot"), "a.test/web", "a.test", "")
	var request map[string]any
	if err := json.Unmarshal([]byte(r.requests()), &request); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"kind": "CredentialProviderRequest", "apiVersion": protocol, "image": "a.test/web", "serviceAccountToken": hidden + "-u1-sa-1-registry",
		"serviceAccountAnnotations": map[string]any{"role": "puller", "region": "north"},
	}
	if fmt.Sprint(request) != fmt.Sprint(want) {
		t.Errorf("asked %v, want %v", request, want)
	}
}

// TestPluginsThatRequireAServiceAccount checks that a plugin that requires a service account is not called for a pod
// without one, or without the required annotations.
func TestPluginsThatRequireAServiceAccount(t *testing.T) {
	for name, c := range map[string]struct {
		needed     bool
		annotation string
		account    string
		runs       int
		failure    string
	}{
		"with one":                      {true, "role", "robot", 1, ""},
		"without one":                   {true, "", "", 0, ""},
		"without one, which is allowed": {false, "", "", 1, ""},
		"one that takes no part":        {true, "team", "robot", 0, ""},
		"one that is not there":         {true, "", "gone", 0, `credential provider "ecr": getting the service account shop/gone, whose token it needs: there is no such account`},
	} {
		t.Run(name, func(t *testing.T) {
			provider, found := withToken(byAccount, c.needed), ""
			if c.annotation != "" {
				provider.TokenAttributes.RequiredServiceAccountAnnotationKeys = []string{c.annotation}
			}
			if c.runs > 0 {
				found = "a.test"
			}
			r := newRig(t, provider)
			r.want(newPod("u1", c.account), "a.test/web", found, c.failure)
			if r.ran() != c.runs {
				t.Errorf("%d runs, want %d", r.ran(), c.runs)
			}
			if c.account == "" && strings.Contains(r.requests(), "serviceAccount") {
				t.Errorf("a pod without a service account is asked for with %s", r.requests())
			}
		})
	}
}

// noAccounts is a node without an API server.
type noAccounts struct{}

func (noAccounts) Account(context.Context, string, string) (*v1.ServiceAccount, error) {
	return nil, errors.New("there is no API server")
}

func (noAccounts) Token(context.Context, *v1.Pod, *v1.ServiceAccount, string) (string, error) {
	return "", errors.New("there is no API server")
}

func TestWithoutAnAPIServerThereAreNoTokens(t *testing.T) {
	r := newRig(t)
	r.end()
	providers := nodeconfig.CredentialProviders{
		Providers: []kubeletconfigv1.CredentialProvider{withToken(byAccount, false)}, BinDir: "/plugins",
	}
	r.start(imagecredentials.Config{Providers: providers, Run: r.run, Accounts: noAccounts{}, Clock: r.clock})
	r.want(newPod("u1", ""), "a.test/web", "a.test", "")
	r.want(newPod("u1", "robot"), "a.test/web", "", `credential provider "ecr": getting the service account shop/robot, whose token it needs: there is no API server`)
}

// TestAnswersForServiceAccountsAreKeptApart also checks that responses for tokens are cached per token.
func TestAnswersForServiceAccountsAreKeptApart(t *testing.T) {
	for _, kind := range []string{"Image", "Registry", "Global"} {
		for cacheType, want := range map[kubeletconfigv1.ServiceAccountTokenCacheType]int{byAccount: 4, byToken: 5} {
			r := newRig(t, withToken(cacheType, false))
			r.accounts["shop/other"] = r.accounts["shop/robot"].DeepCopy()
			r.answer = answers(kind, "1h", "a.test")
			ask := func(account string) { r.want(newPod("u-1", account), "a.test/web", "a.test", "") }
			ask("robot")
			ask("robot")
			r.want(newPod("u-2", "robot"), "a.test/web", "a.test", "") // another token of the same account
			ask("other")
			ask("")
			r.accounts["shop/robot"].Annotations["region"] = "south"
			ask("robot")
			r.accounts["shop/robot"].Annotations["unasked"] = "changed"
			ask("robot")
			if r.ran() != want {
				t.Errorf("%s by %s: %d runs, want %d", kind, cacheType, r.ran(), want)
			}
		}
	}
	r := newRig(t, withToken(byAccount, true))
	r.want(newPod("u1", "robot"), "a.test/web", "a.test", "")
	r.accounts["shop/robot"].UID = "sa-2" // another account of the same name
	r.want(newPod("u1", "robot"), "a.test/web", "a.test", "")
	if r.ran() != 2 {
		t.Errorf("%d runs: another account has the answer of the one before", r.ran())
	}
}

func TestTheTokenIsAPasswordOnlyWhereAnswersAreKeptByToken(t *testing.T) {
	echo := func(_ context.Context, c imagecredentials.Command) (imagecredentials.Output, error) {
		var request struct{ ServiceAccountToken string }
		if err := json.Unmarshal(c.Stdin, &request); err != nil {
			return imagecredentials.Output{}, err
		}
		return imagecredentials.Output{Stdout: []byte(strings.ReplaceAll(string(response("Image", "", "a.test")), hidden+"-password", request.ServiceAccountToken))}, nil
	}
	r := newRig(t, withToken(byAccount, true))
	r.answer = echo
	r.want(newPod("u1", "robot"), "a.test/web", "", `credential provider "ecr": its plugin /plugins/ecr has returned the token of the service account as password, `+
		"which needs cacheType: Token in its tokenAttributes")
	r = newRig(t, withToken(byToken, true))
	r.answer = echo
	found, failures := r.For(t.Context(), newPod("u1", "robot"), "a.test/web")
	if len(failures) > 0 || len(found) != 1 || found[0].Config["a.test"].Password != hidden+"-u1-sa-1-registry" {
		t.Errorf("found %d, failures %v, want none, 1 and Password %v", len(found), failures, hidden+"-u1-sa-1-registry")
	}
	if account := found[0].Account; account == nil || account.Namespace != "shop" || account.Name != "robot" ||
		account.UID == "" {
		t.Errorf("they are those of the service account %+v", account)
	}
}
