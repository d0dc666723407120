package cluster_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// TestAStandaloneNodeHasACompleteLink checks that functions that need an API server return an error with advice, and
// that the others are no-ops.
func TestAStandaloneNodeHasACompleteLink(t *testing.T) {
	registry := prometheus.NewRegistry()
	objects := configobjects.NewConfigmux(configobjects.ConfigmuxConfig{Changed: func(types.UID) {}})
	link := cluster.Standalone(objects, registry,
		components.New(slog.New(slog.DiscardHandler)))
	ctx, class := context.Background(), "gvisor"
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}, Spec: v1.PodSpec{RuntimeClassName: &class}}
	_, tokenErr := link.Tokens.Token(ctx, pod, "", 3600)
	_, bundleErr := link.TrustBundles.Get(ctx, pod, &v1.ClusterTrustBundleProjection{})
	_, _, certificateErr := link.Certificates.Get(ctx, pod, "tls", 0, &v1.PodCertificateProjection{})
	_, accountErr := link.Accounts.Account(ctx, "shop", "robot")
	_, accountTokenErr := link.Accounts.Token(ctx, pod, nil, "registry")
	claimed := &v1.Volume{Name: "data"}
	claimed.Ephemeral = &v1.EphemeralVolumeSource{}
	_, _, claimErr := link.Claims.Claim(ctx, pod, claimed)
	_, secretErr := link.Claims.Secret(ctx, "shop", "login")
	for what, err := range map[string]error{
		"token": tokenErr, "trust bundle": bundleErr, "certificate": certificateErr, "service account": accountErr, "its token": accountTokenErr,
		"claim": claimErr, "secret of a volume": secretErr,
	} {
		if err == nil || !strings.Contains(err.Error(), "leave") {
			t.Errorf("%s: got %v, want an error that says what to leave out", what, err)
		}
	}
	if handler, err := link.RuntimeClasses.Handler(ctx, pod); handler != class || err != nil {
		t.Errorf("handler: got %q, %v, want the name of the class", handler, err)
	}
	if variables, err := link.Services.Variables(ctx, pod); len(variables) != 0 || err != nil {
		t.Errorf("service variables: got %v, %v, want none", variables, err)
	}
	link.Statuses.Report(podstatus.Report{Pod: pod})
	mirrors := link.Mirrors(func(types.NamespacedName, types.UID) bool { return false })
	mirrors.Want(pod)
	mirrors.SetKnown(true, true)
	mirrors.SetNode("n1")
	mirrors.Seen(pod)
	mirrors.Gone(pod.UID)
	mirrors.Unwant(pod.UID)
	for _, forgets := range []interface{ Forget(types.UID) }{
		link.Objects, link.Tokens, link.TrustBundles, link.Certificates, link.Claims, link.RuntimeClasses,
		link.Services, link.Statuses,
	} {
		forgets.Forget(pod.UID)
	}
	if unsent := link.Statuses.Unsent(); unsent != 0 {
		t.Errorf("%d statuses are not sent, with nobody to send them to", unsent)
	}
}
