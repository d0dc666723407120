package cluster

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/clustertrustbundles"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podcertificates"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/tokens"
)

// Standalone returns the Link of a node without an API server. Its config maps and secrets are those of configmux, a
// runtime class is the name of a handler, and everything else fails with an error that says what to do instead. The
// metrics of a node in a cluster are registered with the value 0.
func Standalone(objects *configobjects.Configmux, registry prometheus.Registerer, parts *components.Group) *Link {
	statusmanager.NewMetrics(registry)
	mirrorpods.NewMetrics(registry)
	parts.Run("config maps and secrets", objects.Run)
	return &Link{
		Objects: objects, Tokens: tokens.None{}, TrustBundles: clustertrustbundles.None{},
		Certificates: podcertificates.None{},
		Claims:       claims.None{}, Accounts: noAccounts{}, RuntimeClasses: runtimeclasses.ByName{},
		Services: servicelinks.None{},
		Statuses: statusmanager.None{},
		Mirrors:  func(func(types.NamespacedName, types.UID) bool) Mirrors { return mirrorpods.None{} },
	}
}

// errNoAccounts is returned to a credential provider that needs a service account or its token.
var errNoAccounts = errors.New("this node has no API server that makes one: leave serviceAccountName out of the pod, or tokenAttributes out of the provider")

// noAccounts is the Accounts of a node without an API server.
type noAccounts struct{}

// Account implements Accounts.
func (noAccounts) Account(context.Context, string, string) (*v1.ServiceAccount, error) {
	return nil, errNoAccounts
}

// Token implements Accounts.
func (noAccounts) Token(context.Context, *v1.Pod, *v1.ServiceAccount, string) (string, error) {
	return "", errNoAccounts
}
