package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
)

// clusterVolume is the mount point of the cluster's files in the container of these tests.
const clusterVolume = "/cluster"

// TestAPodHasRootsAndACertificateOfItsCluster checks the files that a container sees: the pod waits for both with a
// message, gets a change of the roots while it runs, and keeps its key across a kill of syncloop until another
// certificate is issued. No file on the node's disk has a key.
func TestAPodHasRootsAndACertificateOfItsCluster(t *testing.T) {
	name := nodeName(t)
	c := cluster.Start(t)
	node.RestartServices(t, "--kubeconfig", c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes))
	admin := c.Client(t)
	awaitThat(t, "the Node is registered", func() bool {
		_, err := admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		return err == nil
	})
	_, err := admin.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e2e"}},
		metav1.CreateOptions{})
	if err == nil {
		_, err = admin.CoreV1().ServiceAccounts("e2e").Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = admin.CoreV1().Pods("e2e").Create(t.Context(), certifiedPod(name), metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	awaitFailedMount(t, "certified", `MountVolume.SetUp failed for volume "cluster" : `, `projected.sources[0].clusterTrustBundle: clustertrustbundles.certificates.k8s.io "shop" not found`,
		"projected.sources[1].podCertificate: the signer shop.example/signer has not issued the certificate of the request e2e/req-")

	one, two := newRoot(t), newRoot(t)
	bundle := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: one}}
	bundle, err = admin.CertificatesV1().ClusterTrustBundles().Create(t.Context(), bundle, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.IssuePodCertificate(t, c.PodCertificateRequest(t, "e2e", "certified-"+name), time.Hour)
	p := await(t, "certified", "Ready", ready)
	root := inside(t, p, "main") + clusterVolume
	content := func(file string) string {
		text, err := os.ReadFile(root + "/" + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if content("ca.crt") != one {
		t.Errorf("the roots are %q, want %q", content("ca.crt"), one)
	}
	key := content("key.pem")
	if _, err := tls.X509KeyPair([]byte(content("bundle.pem")), []byte(content("bundle.pem"))); err != nil || !strings.HasPrefix(content("bundle.pem"), key) {
		t.Errorf("the bundle is not the key and its certificate: %v", err)
	}
	bundle.Spec.TrustBundle = two
	if _, err := admin.CertificatesV1().ClusterTrustBundles().Update(t.Context(), bundle,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "the new roots are in the file", func() bool { return content("ca.crt") == two })

	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	again := c.PodCertificateRequest(t, "e2e", "certified-"+name)
	if content("key.pem") != key {
		t.Error("the key was replaced before there is a certificate for another")
	}
	c.IssuePodCertificate(t, again, time.Hour)
	awaitThat(t, "the new key is in the file", func() bool { return content("key.pem") != key })
	for _, secret := range []string{key, content("key.pem")} {
		for _, path := range filesWith(t, node.Layout.StateDir(), strings.Split(secret, "\n")[1]) {
			t.Errorf("%s has a key", path)
		}
	}
	if err := admin.CoreV1().Pods("e2e").Delete(t.Context(), "certified-"+name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, "certified")
	awaitNothingLeft(t, p)
}

// certifiedPod returns a pod on a node with roots and a certificate of its cluster. It is named like a static pod.
func certifiedPod(node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "certified-" + node, Namespace: "e2e"},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			ServiceAccountName: "robot",
			Containers: []v1.Container{{
				Name: "main", Image: image, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent, VolumeMounts: []v1.VolumeMount{{Name: "cluster", MountPath: clusterVolume}},
			}},
			Volumes: []v1.Volume{{Name: "cluster", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr.To("shop"), Path: "ca.crt"}},
				{PodCertificate: &v1.PodCertificateProjection{SignerName: "shop.example/signer", KeyType: "ECDSAP256", CredentialBundlePath: "bundle.pem", KeyPath: "key.pem"}},
			}}}}},
		},
	}
}

// newRoot returns a new root certificate, as PEM.
func newRoot(t *testing.T) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "shop"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
