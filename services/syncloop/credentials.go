package main

import (
	"context"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/tokens"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
)

// accountTimeout bounds the question for a service account.
const accountTimeout = 10 * time.Second

// credentialProviders has the plugins of e's configuration asked, until process ends. It fails, with everything that is wrong, when that
// cannot be used or a plugin is missing. The root of this process is the machine's already, as the paths are.
func credentialProviders(process context.Context, e *engine, tel *telemetry.Telemetry, to connections) (*imagecredentials.Providers, error) {
	providers, err := e.cfg.CredentialProviders.Read()
	if err != nil {
		return nil, err
	}
	cfg := imagecredentials.Config{Providers: providers, Run: imagecredentials.Exec, Clock: clock.RealClock{}, Metrics: imagecredentials.NewMetrics(e.metrics.Registry), Logger: tel.Logger}
	if to.cluster != nil {
		cfg.Accounts = serviceAccounts{core: to.cluster.Core, tokens: e.identities.tokens}
	}
	return imagecredentials.New(process, cfg), nil
}

// serviceAccounts are those of an API server.
type serviceAccounts struct {
	core   rest.Interface
	tokens *tokens.Tokens
}

// Account implements imagecredentials.Accounts. The API server lets a node ask for those of the pods that are bound to it.
func (s serviceAccounts) Account(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	ctx, cancel := context.WithTimeout(ctx, accountTimeout)
	defer cancel()
	account := &v1.ServiceAccount{}
	if err := s.core.Get().Namespace(namespace).Resource("serviceaccounts").Name(name).Do(ctx).Into(account); err != nil {
		return nil, err
	}
	return account, nil
}

// Token implements imagecredentials.Accounts.
func (s serviceAccounts) Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error) {
	return s.tokens.UnwatchedToken(ctx, pod, account.UID, audience)
}

// homeDir is the home of the user that this process runs as: that of root where nothing else is said, as for a unit of systemd.
func homeDir() string {
	if home, err := os.UserHomeDir(); err == nil {
		return home
	}
	return "/root"
}
