package nodestatus

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/services/nodestatus/internal/joining"
)

// keepCertificate runs the components that obtain and renew the node's certificate and write its kubeconfig, as far as
// the configuration requests it.
func keepCertificate(
	ctx context.Context,
	group *errgroup.Group,
	cfg nodeconfig.Config,
	health *rpc.Health,
	registry prometheus.Registerer,
	logger *slog.Logger,
) error {
	joiner, err := joining.New(joining.Config{
		NodeName:   cfg.NodeName,
		Bootstrap:  cfg.BootstrapKubeconfig,
		Kubeconfig: cfg.Kubeconfig,
		Dir:        cfg.CertDir,
		Rotate:     cfg.Kubelet.RotateCertificates,
		Connect: func(kubeconfig string) (*apiclient.Client, error) {
			to := apiclient.ConfigOf(nodeconfig.NodeStatus, cfg)
			to.Kubeconfig, to.Await = kubeconfig, false
			return apiclient.New(to)
		},
		Random: rand.Float64,
		Health: health,
		Clock:  clock.RealClock{},
		Logger: logger,
	})
	if err != nil || joiner == nil {
		return err
	}
	registry.MustRegister(joiner.Manager().Collectors("client")...)
	group.Go(func() error {
		joiner.Run(ctx)
		return nil
	})
	return nil
}
