package clustertrustbundles_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/clustertrustbundles"
	"github.com/quartet-node/quartet/test/cluster"
)

// shared is the cluster of these tests.
var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// root returns a root certificate as PEM, with an unnecessary header and text.
func root(t *testing.T, name string) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// rig has the trust bundles of a node in a real cluster.
type rig struct {
	t        *testing.T
	cluster  *cluster.Cluster
	bundles  *clustertrustbundles.Bundles
	notified chan types.UID
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, cluster: shared.Cluster(t), notified: make(chan types.UID, 100)}
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: r.cluster.Kubeconfig(t, cluster.NodeUser("rooted"), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50, Burst: 100,
		ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r.bundles = clustertrustbundles.New(clustertrustbundles.Config{
		Client: client.Certificates, Changed: func(uid types.UID) { r.notified <- uid }, Clock: clock.RealClock{},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.bundles.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	return r
}

// put creates or replaces a bundle.
func (r *rig) put(name, signer, label, text string) {
	r.t.Helper()
	api := r.cluster.Client(r.t).CertificatesV1().ClusterTrustBundles()
	b := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kind": label}}, Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
	stored, err := api.Get(r.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(r.t.Context(), b, metav1.CreateOptions{})
	} else if err == nil {
		b.ResourceVersion = stored.ResourceVersion
		_, err = api.Update(r.t.Context(), b, metav1.UpdateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// comesTo waits until a source of a pod has these roots. It reads the source again each time the pod is notified.
func (r *rig) comesTo(pod *v1.Pod, p *v1.ClusterTrustBundleProjection, want ...string) {
	r.t.Helper()
	slices.SortFunc(want, func(a, b string) int { return strings.Compare(string(der(a)), string(der(b))) })
	deadline := time.After(60 * time.Second)
	for {
		got, err := r.bundles.Get(r.t.Context(), pod, p)
		if err == nil && string(got) == strings.Join(want, "") || len(want) == 0 && apierrors.IsNotFound(err) {
			return
		}
		select {
		case <-r.notified:
		case <-deadline:
			r.t.Fatalf("got %q, error %v; want %q", got, err, want)
		}
	}
}

func der(text string) []byte {
	block, _ := pem.Decode([]byte(text))
	return block.Bytes
}

func podOf(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: string(uid), UID: uid}}
}

func TestRootsByName(t *testing.T) {
	r := newRig(t)
	one, two := root(t, "one"), root(t, "two")
	named := &v1.ClusterTrustBundleProjection{Name: ptr.To("roots-by-name")}
	r.comesTo(podOf("u-1"), named)
	_, err := r.bundles.Get(t.Context(), podOf("u-1"), named)
	if err == nil || !strings.Contains(err.Error(), `"roots-by-name" not found`) {
		t.Errorf("Get() error = %v, want an error with %q", err, `"roots-by-name" not found`)
	}
	r.put("roots-by-name", "", "a", "words\n"+two+"more\n"+one)
	r.comesTo(podOf("u-1"), named, one, two)
	r.put("another-name", "", "a", one)
	r.put("roots-by-name", "", "a", two)
	r.comesTo(podOf("u-1"), named, two)
	for len(r.notified) > 0 {
		if uid := <-r.notified; uid != "u-1" {
			t.Errorf("told %q, want %q", uid, "u-1")
		}
	}
	r.bundles.Forget("u-1")
	r.comesTo(podOf("u-2"), named, two)
	r.put("roots-by-name", "", "a", one)
	r.comesTo(podOf("u-2"), named, one)
	for len(r.notified) > 0 {
		if uid := <-r.notified; uid == "u-1" {
			t.Error("a pod was told that is forgotten")
		}
	}
}

func TestRootsOfASigner(t *testing.T) {
	r := newRig(t)
	one, two, three := root(t, "one"), root(t, "two"), root(t, "three")
	r.put("shop.example:signer:1", "shop.example/signer", "live", one+two)
	r.put("shop.example:signer:2", "shop.example/signer", "live", two+three)
	r.put("shop.example:signer:3", "shop.example/signer", "canary", three)
	r.put("shop.example:other:1", "shop.example/other", "live", three)
	signed := func(selector *metav1.LabelSelector) *v1.ClusterTrustBundleProjection {
		return &v1.ClusterTrustBundleProjection{SignerName: ptr.To("shop.example/signer"), LabelSelector: selector}
	}
	live := signed(&metav1.LabelSelector{MatchLabels: map[string]string{"kind": "live"}})
	r.comesTo(podOf("u-1"), live, one, two, three)
	r.comesTo(podOf("u-1"), signed(&metav1.LabelSelector{MatchLabels: map[string]string{"kind": "canary"}}), three)
	r.comesTo(podOf("u-1"), signed(&metav1.LabelSelector{}), one, two, three)
	r.comesTo(podOf("u-1"), signed(nil)) // nothing
	_, err := r.bundles.Get(t.Context(), podOf("u-1"), signed(nil))
	if err == nil || !strings.Contains(err.Error(), `no clustertrustbundle of the signer "shop.example/signer" matches the labelSelector`) {
		t.Errorf("Get() error = %v, want an error with %q",
			err, `no clustertrustbundle of the signer "shop.example/signer" matches the labelSelector`)
	}
	if err := r.cluster.Client(t).CertificatesV1().ClusterTrustBundles().Delete(t.Context(), "shop.example:signer:2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.comesTo(podOf("u-1"), live, one, two)
	r.put("shop.example:signer:3", "shop.example/signer", "live", three)
	r.comesTo(podOf("u-1"), live, one, two, three)
	r.cluster.APIServer.Kill(t)
	r.comesTo(podOf("u-2"), live, one, two, three)
}

func TestPodsThatCannotHaveRoots(t *testing.T) {
	r := newRig(t)
	static := podOf("u-1")
	static.Annotations = map[string]string{podset.AnnotationSource: "file"}
	for want, test := range map[string]struct {
		pod *v1.Pod
		p   v1.ClusterTrustBundleProjection
	}{
		`only pods of the API server have its bundles of roots, and this one is of the source "file"`: {static, v1.ClusterTrustBundleProjection{Name: ptr.To("x")}},
		"it has neither name nor signerName; say one of them":                                         {podOf("u-2"), v1.ClusterTrustBundleProjection{}},
		`labelSelector: "Is" is not a valid label selector operator`: {podOf("u-2"), v1.ClusterTrustBundleProjection{
			SignerName: ptr.To("x"), LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}},
		}},
	} {
		if got, err := r.bundles.Get(t.Context(), test.pod, &test.p); err == nil || !strings.Contains(err.Error(), want) ||
			apierrors.IsNotFound(err) {
			t.Errorf("got %q, error %v; want %s", got, err, want)
		}
	}
}

// TestObjectsAreUnknownWhileTheAPIServerIsUnavailable also checks that a pod is notified when the API server is back.
func TestObjectsAreUnknownWhileTheAPIServerIsUnavailable(t *testing.T) {
	r := newRig(t)
	one := root(t, "one")
	r.put("late", "", "a", one)
	r.cluster.APIServer.Kill(t)
	p := &v1.ClusterTrustBundleProjection{Name: ptr.To("late")}
	if _, err := r.bundles.Get(t.Context(), podOf("u-1"), p); err == nil || apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "not known yet: the API server") {
		t.Errorf("Get() error = %v, want no not-found error and with %q", err, "not known yet: the API server")
	}
	r.cluster.APIServer.Start(t)
	r.comesTo(podOf("u-1"), p, one)
}
