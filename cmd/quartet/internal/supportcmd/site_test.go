package supportcmd

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeprocess/nodeprocesstest"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/fakesite"
	"github.com/quartet-node/quartet/test/harness"
)

// holding is a configmux that serves one secret.
type holding struct {
	configv1.UnimplementedConfigServiceServer
	asked *bool
}

func (h holding) WatchObjects(
	_ *configv1.WatchObjectsRequest, to grpc.ServerStreamingServer[configv1.WatchObjectsResponse],
) error {
	*h.asked = true
	secret, err := (&corev1.Secret{Data: map[string][]byte{"key": []byte("hunter22")}}).Marshal()
	if err != nil {
		return err
	}
	for _, m := range []*configv1.WatchObjectsResponse{
		{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_OPENED}},
		{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SNAPSHOT}, Object: &configv1.Object{Object: secret}},
		{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SYNCED}},
	} {
		if err := to.Send(m); err != nil {
			return err
		}
	}
	return nil
}

type noPods struct {
	enginev1.UnimplementedEngineServiceServer
}

func (noPods) ListPods(context.Context, *enginev1.ListPodsRequest) (*enginev1.ListPodsResponse, error) {
	return &enginev1.ListPodsResponse{}, nil
}

// The secrets of a node of a site are known, too, if its syncloop gets them from there.
func TestSecretsOfANodeOfASiteAreKnown(t *testing.T) {
	l, err := layout.New(harness.ShortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: l.Address(layout.SyncLoop), Health: rpc.NewHealth(), Ready: func() { close(ready) },
			Register: func(server *grpc.Server) { enginev1.RegisterEngineServiceServer(server, noPods{}) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
	asked := false
	site := fakesite.Serve(t, holding{asked: &asked})
	site.FollowedBy(t, l.StateDir())
	c := &collector{layout: l}
	if got := c.secretsOfPods(t.Context()); !slices.Equal(got, []string{"hunter22"}) || len(c.gaps) > 0 {
		t.Errorf("secretsOfPods() = %q with the gaps %q, want the secret of the site", got, c.gaps)
	}
	// Without --configmux-objects, configmux would watch the secrets for nobody but the bundle.
	nodeprocesstest.Start(t, l.StateDir(), layout.SyncLoop, "--configmux-address="+site.Address, "--kubeconfig=/k",
		"--tls-cert="+site.Node.Cert, "--tls-key="+site.Node.Key, "--tls-ca="+site.Node.CA)
	asked, c = false, &collector{layout: l}
	if got := c.secretsOfPods(t.Context()); len(got) > 0 || len(c.gaps) > 0 || asked {
		t.Errorf("secretsOfPods() = %q with the gaps %q, asked: %v, want nothing, as on each node of an API server", got, c.gaps, asked)
	}
}
