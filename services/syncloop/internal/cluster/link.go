package cluster

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// Link is the connection of a node's pods to the API server: what they get from it and what is reported to it.
// [Connect] returns the Link of a node in a cluster, [Standalone] that of a node without an API server. Both set every
// field.
type Link struct {
	// Objects provides the config maps and secrets that pods name.
	Objects configobjects.Source
	// Tokens provides tokens of service accounts, TrustBundles the trust anchors of the cluster, and Certificates keys
	// with certificates.
	Tokens       Tokens
	TrustBundles TrustBundles
	Certificates Certificates
	// Claims provides the claims of pods, their persistent volumes, and what these need.
	Claims claims.Source
	// Accounts provides the service accounts of pods, for credential providers of images.
	Accounts Accounts
	// RuntimeClasses resolves the runtime handler of a pod, Services returns the variables of the cluster's services.
	RuntimeClasses RuntimeClasses
	Services       Services
	// Statuses writes the statuses of pods.
	Statuses Statuses
	// Mirrors returns the manager that shows static pods as mirror pods. A mirror pod stays as long as ending returns
	// true, that is while another pod of that name than the one with the UID is not gone yet. Call it once.
	Mirrors func(ending func(name types.NamespacedName, except types.UID) bool) Mirrors
}

// Tokens returns tokens of service accounts; see [tokens.Tokens].
type Tokens interface {
	Token(ctx context.Context, pod *v1.Pod, audience string, expirationSeconds int64) (string, error)
	Forget(uid types.UID)
}

// TrustBundles returns the cluster's trust anchors; see [clustertrustbundles.Bundles].
type TrustBundles interface {
	Get(ctx context.Context, pod *v1.Pod, p *v1.ClusterTrustBundleProjection) ([]byte, error)
	Forget(uid types.UID)
}

// Certificates returns keys with certificates; see [podcertificates.Certificates].
type Certificates interface {
	Get(ctx context.Context, pod *v1.Pod, volume string, source int, p *v1.PodCertificateProjection) (privateKey,
		chain []byte, err error)
	Forget(uid types.UID)
}

// Accounts returns service accounts and their tokens.
type Accounts interface {
	Account(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error)
}

// RuntimeClasses resolves the runtime class of a pod; see [runtimeclasses.Classes].
type RuntimeClasses interface {
	Use(pod *v1.Pod)
	Forget(uid types.UID)
	Handler(ctx context.Context, pod *v1.Pod) (string, error)
}

// Services returns the service variables of a pod; see [servicelinks.Links].
type Services interface {
	Variables(ctx context.Context, pod *v1.Pod) ([]v1.EnvVar, error)
	Forget(uid types.UID)
}

// Statuses writes the statuses of pods; see [statusmanager.Manager].
type Statuses interface {
	Report(report podstatus.Report)
	Forget(uid types.UID)
	// Unsent returns how many pods have a status that the API server does not have yet.
	Unsent() int
}

// Mirrors shows static pods as mirror pods; see [mirrorpods.Manager].
type Mirrors interface {
	Want(pod *v1.Pod)
	Unwant(uid types.UID)
	Seen(mirror *v1.Pod)
	Gone(uid types.UID)
	SetKnown(mirrors, statics bool)
	SetNode(uid types.UID)
}
