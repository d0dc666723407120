package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/test/cluster"
)

// TestTheClusterSignsTheServingCertificate: the node requests a certificate with its name and addresses, and serves
// with it after the approval.
func TestTheClusterSignsTheServingCertificate(t *testing.T) {
	r := newRemote(t, "serverTLSBootstrap: true\n", cluster.Controllers())
	client := r.cluster.Client(t)
	requests := client.CertificatesV1().CertificateSigningRequests()
	awaitThat(t, "a request of a serving certificate is there, and approved", func() bool {
		list, err := requests.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + certificatesv1.KubeletServingSignerName})
		if err != nil || len(list.Items) == 0 {
			return false
		}
		request := list.Items[0]
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: v1.ConditionTrue, Reason: "Test", Message: "approved by a test",
		}}
		_, err = requests.UpdateApproval(t.Context(), request.Name, &request, metav1.UpdateOptions{})
		return err == nil
	})
	roots := x509.NewCertPool()
	content, err := os.ReadFile(r.authority())
	if err != nil || !roots.AppendCertsFromPEM(content) {
		t.Fatal(err)
	}
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: r.node, MinVersion: tls.VersionTLS12}}
	awaitThat(t, "the API shows a certificate of the cluster", func() bool {
		conn, err := dialer.DialContext(t.Context(), "tcp", "127.0.0.1:"+r.port)
		if err == nil {
			err = conn.Close()
		}
		return err == nil
	})
}
