package podcertificates_test

import (
	"context"
	"crypto/tls"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podcertificates"
	"github.com/quartet-node/quartet/test/cluster"
)

// TestACertificateOfAnAPIServer requests certificates as a node. The pod must be notified when a signer has issued or
// denied the request, and when somebody deletes the request.
func TestACertificateOfAnAPIServer(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t).CoreV1()
	node, err := admin.Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "certified"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.ServiceAccounts("default").Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "certified"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	projection := &v1.PodCertificateProjection{SignerName: "shop.example/signer", KeyType: "ECDSAP256", CredentialBundlePath: "bundle.pem"}
	pod, err := admin.Pods("default").Create(t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "certified"}, Spec: v1.PodSpec{
		NodeName: node.Name, ServiceAccountName: "certified", Containers: []v1.Container{{Name: "c", Image: "i:1"}},
		Volumes: []v1.Volume{{Name: "tls", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{PodCertificate: projection}}}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: c.Kubeconfig(t, cluster.NodeUser(node.Name), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50,
		Burst: 100, ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	notified := make(chan types.UID, 100)
	certs := podcertificates.New(podcertificates.Config{
		API: podcertificates.APIServer{
			Core: client.Core, Certificates: client.Certificates, NodeName: node.Name, Clock: clock.RealClock{},
		},
		Node: func(context.Context) (*v1.Node, error) { return node, nil }, Changed: func(uid types.UID) { notified <- uid },
		Clock: clock.RealClock{},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = certs.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)

	await(t, notified, func() bool {
		_, _, err := certs.Get(t.Context(), pod, "tls", 0, projection)
		return err != nil && strings.Contains(err.Error(), "has not issued the certificate of the request default/req-")
	})
	first := c.PodCertificateRequest(t, "default", pod.Name)
	if err := c.Client(t).CertificatesV1().PodCertificateRequests("default").Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, notified, func() bool {
		_, _, err := certs.Get(t.Context(), pod, "tls", 0, projection)
		return strings.Contains(err.Error(), "has not issued") && !strings.Contains(err.Error(), first.Name)
	})
	c.IssuePodCertificate(t, c.PodCertificateRequest(t, "default", pod.Name), time.Hour)
	await(t, notified, func() bool {
		key, chain, err := certs.Get(t.Context(), pod, "tls", 0, projection)
		if err != nil {
			return false
		}
		if _, err := tls.X509KeyPair(chain, key); err != nil {
			t.Error(err)
		}
		return true
	})
	await(t, notified, func() bool {
		_, _, err := certs.Get(t.Context(), pod, "other", 0, projection)
		return err != nil && strings.Contains(err.Error(), "has not issued")
	})
	c.DenyPodCertificate(t, c.PodCertificateRequest(t, "default", pod.Name), "UnsupportedKeyType", "say ED25519")
	await(t, notified, func() bool {
		_, _, err := certs.Get(t.Context(), pod, "other", 0, projection)
		return err != nil && strings.Contains(err.Error(), `was denied for good, by the reason "UnsupportedKeyType": "say ED25519"`)
	})
}

// await waits until done returns true. It checks at the beginning, after each notification, and periodically as the
// volume manager does.
func await(t *testing.T, notified <-chan types.UID, done func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !done() {
		select {
		case <-notified:
		case <-time.After(time.Second):
		case <-deadline:
			t.Fatal("it does not come to that")
		}
	}
}
