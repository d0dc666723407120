package cluster

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// requestPatience is the time limit of the wait for a certificate request.
	requestPatience = time.Minute
	// podCertificateLife is the lifetime of pod certificates. The API server accepts it.
	podCertificateLife = 2 * time.Hour
)

// PodCertificateRequest waits for a pod's certificate request that is neither issued nor denied.
func (c *Cluster) PodCertificateRequest(t testing.TB, namespace, pod string) *certificatesv1.PodCertificateRequest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestPatience)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		list, err := c.Client(t).CertificatesV1().PodCertificateRequests(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("cluster: %v", err)
		}
		for i := range list.Items {
			if r := &list.Items[i]; r.Spec.PodName == pod && len(r.Status.Conditions) == 0 {
				return r
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("cluster: the pod %s/%s requests no certificate", namespace, pod)
		case <-tick.C:
		}
	}
}

// IssuePodCertificate acts as the signer of a request: it issues a certificate of the cluster's authority, to be
// refreshed after a time.
func (c *Cluster) IssuePodCertificate(t testing.TB, r *certificatesv1.PodCertificateRequest, refresh time.Duration) {
	t.Helper()
	proof, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatalf("cluster: the request %s/%s: %v", r.Namespace, r.Name, err)
	}
	now := time.Now().Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: r.Spec.PodName},
		NotBefore: now, NotAfter: now.Add(podCertificateLife), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.authority.cert, proof.PublicKey, c.authority.key)
	if err != nil {
		t.Fatalf("cluster: the certificate of %s/%s: %v", r.Namespace, r.Name, err)
	}
	at := func(when time.Time) *metav1.Time { m := metav1.NewTime(when); return &m }
	r = r.DeepCopy()
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{condition(certificatesv1.PodCertificateRequestConditionTypeIssued, "Issued", "")}, CertificateChain: string(encode("CERTIFICATE", der)),
		NotBefore: at(template.NotBefore), BeginRefreshAt: at(now.Add(refresh)), NotAfter: at(template.NotAfter),
	}
	c.setStatus(t, r)
}

// DenyPodCertificate acts as a signer that denies a request.
func (c *Cluster) DenyPodCertificate(t testing.TB, r *certificatesv1.PodCertificateRequest, reason, message string) {
	t.Helper()
	r = r.DeepCopy()
	denied := condition(certificatesv1.PodCertificateRequestConditionTypeDenied, reason, message)
	r.Status.Conditions = []metav1.Condition{denied}
	c.setStatus(t, r)
}

func condition(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message,
		LastTransitionTime: metav1.Now()}
}

func (c *Cluster) setStatus(t testing.TB, r *certificatesv1.PodCertificateRequest) {
	t.Helper()
	requests := c.Client(t).CertificatesV1().PodCertificateRequests(r.Namespace)
	if _, err := requests.UpdateStatus(t.Context(), r, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("cluster: the status of the request %s/%s: %v", r.Namespace, r.Name, err)
	}
}
