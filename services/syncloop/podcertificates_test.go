package syncloop

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
)

// denies is an API server whose signer denies every request for a certificate of a pod.
func denies(w http.ResponseWriter, r *http.Request) {
	request := certificatesv1.PodCertificateRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "PodCertificateRequest"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "req-1"},
	}
	var answer any = v1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: metav1.ObjectMeta{Name: "robot", UID: "r-1"}}
	switch {
	case r.URL.Query().Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	case r.Method == http.MethodPost:
		answer = request
	case strings.HasSuffix(r.URL.Path, "/podcertificaterequests"):
		request.Status.Conditions = []metav1.Condition{
			{
				Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue,
				Reason: "UnsupportedKeyType", Message: "say ED25519",
			},
		}
		answer = certificatesv1.PodCertificateRequestList{
			TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "PodCertificateRequestList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: []certificatesv1.PodCertificateRequest{request},
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// TestADeniedCertificateIsReportedAndCounted checks the event of the pod and the metric of a denied request.
func TestADeniedCertificateIsReportedAndCounted(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(denies))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n" +
		"clusters: [{name: a, cluster: {server: '" + server.URL + "'}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, []string{"--hostname-override", "node-1", "--kubeconfig", kubeconfig}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Kubelet.ContentType = "application/json"
	sent := make(chan *v1.Event, 10)
	logger, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	events := podevents.New(podevents.Config{
		NodeName: "node-1", Publish: func(event *v1.Event) { sent <- event }, Clock: clock.RealClock{}, Logger: logger,
	})
	defer events.Close()
	askNode := func(context.Context) (*v1.Node, error) {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "n-1"}}, nil
	}
	parts := components.New(logger)
	h := &host{cfg: cfg, logger: logger, registry: registry, requests: apiclient.NewMetrics(registry)}
	ctx, cancel := context.WithCancel(t.Context())
	link, err := newLink(ctx, h, askNode, podchanges.New(), events, parts)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- parts.Wait(ctx) }()
	pod := newPod("u-1", "web", "main")
	pod.Spec.ServiceAccountName = "robot"
	source := &v1.PodCertificateProjection{SignerName: "shop.example/signer", KeyType: "ECDSAP256"}
	if _, _, err := link.Certificates.Get(ctx, pod, "tls", 0, source); err == nil {
		t.Error("the pod has a certificate")
	}
	select {
	case event := <-sent:
		const want = `PodCertificateRequest default/req-1 was denied, reason="UnsupportedKeyType", message="say ED25519"`
		if event.InvolvedObject.UID != "u-1" || event.Type != v1.EventTypeWarning || event.Reason != "Denied" || event.Message != want {
			t.Errorf("the event is %+v, want InvolvedObject.UID %q, Type %v, Reason %q and Message %v",
				event, "u-1", v1.EventTypeWarning, "Denied", want)
		}
	case <-time.After(60 * time.Second):
		t.Error("there is no event")
	}
	metricstest.Want(t, registry, 1, "kubelet_podcertificate_states", "signer_name", "shop.example/signer", "state", "denied")
	cancel()
	if err := errors.Join(<-ended, parts.Close()); err != nil {
		t.Error(err)
	}
}
