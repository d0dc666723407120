package podcertificates_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podcertificates"
	"github.com/quartet-node/quartet/test/cluster"
)

// shared is the cluster of the tests that need one.
var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// server is a fake API server for one node. The test signs its requests.
type server struct {
	mu       sync.Mutex
	fail     error
	requests []*certificatesv1.PodCertificateRequest
	follower reflector.Handler
	began    chan struct{}
}

func (s *server) Account(_ context.Context, namespace, name string) (types.UID, error) {
	return types.UID("uid of " + namespace + "/" + name), nil
}

func (s *server) Create(
	_ context.Context, r *certificatesv1.PodCertificateRequest,
) (*certificatesv1.PodCertificateRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return nil, s.fail
	}
	r = r.DeepCopy()
	r.Name = fmt.Sprintf("%s%d", r.GenerateName, len(s.requests)+1)
	s.requests = append(s.requests, r)
	return r, nil
}

func (s *server) Follow(ctx context.Context, to reflector.Handler) error {
	s.follower = to
	to.Listed(nil, time.Now())
	close(s.began)
	<-ctx.Done()
	return ctx.Err()
}

// last returns the last request, which must have the given number.
func (s *server) last(t *testing.T, number int) *certificatesv1.PodCertificateRequest {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) != number {
		t.Fatalf("there are %d requests, want %d", len(s.requests), number)
	}
	return s.requests[number-1]
}

func (s *server) failing(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// issue issues a certificate chain that must be refreshed after some time.
func (s *server) issue(r *certificatesv1.PodCertificateRequest, chain string, refresh, life time.Duration) {
	r = r.DeepCopy()
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued}},
		CertificateChain: chain,
		BeginRefreshAt:   ptr.To(metav1.NewTime(time.Now().Add(refresh))),
		NotAfter:         ptr.To(metav1.NewTime(time.Now().Add(life))),
	}
	s.follower.Changed(r)
}

func (s *server) refuse(r *certificatesv1.PodCertificateRequest, how, reason, message string) {
	r = r.DeepCopy()
	r.Status.Conditions = []metav1.Condition{{Type: how, Reason: reason, Message: message}}
	s.follower.Changed(r)
}

// recorder records events and the notified pods.
type recorder struct {
	mu       sync.Mutex
	events   []string
	notified []types.UID
}

func (r *recorder) Warning(_ context.Context, pod *v1.Pod, _, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, pod.Name+" "+reason+": "+message)
}

func (r *recorder) changed(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notified = append(r.notified, uid)
}

// take returns the events and the notified pods since the last call.
func (r *recorder) take() (events []string, notified []types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	events, notified = r.events, r.notified
	r.events, r.notified = nil, nil
	return events, notified
}

// rig has the certificates of a node in a synctest bubble.
type rig struct {
	t      *testing.T
	server *server
	*recorder
	log   bytes.Buffer
	certs *podcertificates.Certificates
}

// inBubble runs a test with a rig.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, server: &server{began: make(chan struct{})}, recorder: &recorder{}}
		r.certs = podcertificates.New(podcertificates.Config{
			API: r.server, Changed: r.changed, Events: r.recorder, Clock: clock.RealClock{}, Jitter: func() float64 { return 1 },
			Node: func(context.Context) (*v1.Node, error) {
				return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "n-1"}}, nil
			},
			Logger: slog.New(slog.NewTextHandler(&r.log, nil)),
		})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = r.certs.Run(ctx) })
		defer running.Wait()
		defer cancel()
		test(r)
		if strings.Contains(r.log.String(), "PRIVATE") {
			t.Errorf("the log has a key:\n%s\nwant text without %q", &r.log, "PRIVATE")
		}
	})
}

func source() *v1.PodCertificateProjection {
	return &v1.PodCertificateProjection{SignerName: "shop.example/signer", KeyType: "ED25519", MaxExpirationSeconds: ptr.To[int32](7200), UserAnnotations: map[string]string{"shop.example/a": "b"}}
}

func webPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u-1"}, Spec: v1.PodSpec{ServiceAccountName: "robot"}}
}

// get returns the certificate of the pod, after everything has come to rest.
func (r *rig) get() (key, chain string, err error) {
	r.t.Helper()
	k, c, err := r.certs.Get(context.Background(), webPod(), "tls", 2, source())
	synctest.Wait()
	return string(k), string(c), err
}

// wants fails the test unless Get returns this chain, or an error with this text if it begins with "!".
func (r *rig) wants(want string) (key string) {
	r.t.Helper()
	key, chain, err := r.get()
	if text, fails := strings.CutPrefix(want, "!"); fails {
		if err == nil || !strings.Contains(err.Error(), text) || key != "" || strings.Contains(err.Error(), "PRIVATE") {
			r.t.Fatalf("got %q, error %v; want %s", chain, err, text)
		}
		return ""
	}
	if err != nil || chain != want || !strings.HasPrefix(key, "-----BEGIN PRIVATE KEY-----\n") {
		r.t.Fatalf("got %q, error %v; want %q", chain, err, want)
	}
	return key
}

func block(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func TestACertificateIsAskedForOnceAndGivenOnceItIsIssued(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.wants("!the signer shop.example/signer has not issued the certificate of the request shop/req-1 yet")
		r.wants("!has not issued")
		request := r.server.last(t, 1)
		if owner := request.OwnerReferences; len(owner) != 1 || owner[0].Kind != "Pod" || owner[0].UID != "u-1" {
			t.Errorf("it belongs to %+v, want exactly one, owner[0].Kind %q and owner[0].UID %q", owner, "Pod", "u-1")
		}
		proof := request.Spec.StubPKCS10Request
		request.Spec.StubPKCS10Request = nil
		want := certificatesv1.PodCertificateRequestSpec{
			SignerName: "shop.example/signer", PodName: "web", PodUID: "u-1", ServiceAccountName: "robot", ServiceAccountUID: "uid of shop/robot",
			NodeName: "node-1", NodeUID: "n-1", MaxExpirationSeconds: ptr.To[int32](7200), UnverifiedUserAnnotations: map[string]string{"shop.example/a": "b"},
		}
		if diff := cmp.Diff(want, request.Spec); diff != "" {
			t.Errorf("asked for (-want +got):\n%s", diff)
		}
		if events, notified := r.take(); len(events)+len(notified) > 0 {
			t.Errorf("while it is waited for: events %q, told %q", events, notified)
		}
		r.server.issue(request, "some words\n"+block("leaf")+"more\n"+block("between")+"words", time.Hour, 2*time.Hour)
		if _, notified := r.take(); !slices.Equal(notified, []types.UID{"u-1"}) {
			t.Errorf("told %q, want %q", notified, []types.UID{"u-1"})
		}
		key := r.wants(block("leaf") + block("between"))
		if got := publicOf(t, key); !got.(ed25519.PublicKey).Equal(provedBy(t, proof)) {
			t.Error("the key is not the one that was proved")
		}
		r.server.last(t, 1)
		if count := r.certs.Count(); count[podcertificates.Counted{Signer: "shop.example/signer", State: podcertificates.Fresh}] != 1 || len(count) != 1 {
			t.Errorf("counts %v, want count 1 and exactly one", count)
		}
		r.certs.Forget("u-1")
		r.wants("!the request shop/req-2 yet")
	})
}

func TestACertificateIsReplacedWhenItsSignerWantsItAndNotBefore(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.wants("!not issued")
		r.server.issue(r.server.last(t, 1), block("one"), time.Hour, 2*time.Hour)
		r.take()
		time.Sleep(time.Hour + 4*time.Minute) // on the bubble's clock; the jitter in this test is five minutes
		old := r.wants(block("one"))
		r.server.last(t, 1)
		if _, notified := r.take(); len(notified) > 0 {
			t.Errorf("told %q before the time", notified)
		}
		time.Sleep(time.Minute + time.Second)
		if _, notified := r.take(); !slices.Equal(notified, []types.UID{"u-1"}) {
			t.Errorf("when it is time, told %q, want %q", notified, []types.UID{"u-1"})
		}
		if r.wants(block("one")) != old {
			t.Error("the key was replaced before there is a certificate for it")
		}
		second := r.server.last(t, 2)
		time.Sleep(2 * time.Minute)
		r.wants(block("one"))
		r.server.last(t, 2)
		r.server.issue(second, block("two"), time.Hour, 2*time.Hour)
		if r.wants(block("two")) == old {
			t.Error("the key was not replaced")
		}
		if events, _ := r.take(); len(events) > 0 {
			t.Errorf("events %q, want none", events)
		}
	})
}

func TestALateCertificateStaysAndIsReported(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.wants("!not issued")
		r.server.issue(r.server.last(t, 1), block("one"), time.Hour, 2*time.Hour)
		time.Sleep(65*time.Minute + time.Second)
		r.server.failing(errors.New("no answer"))
		r.wants(block("one"))
		r.server.last(t, 1)
		if text := r.log.String(); !strings.Contains(text, "cannot be replaced") || !strings.Contains(text, "no answer") {
			t.Errorf("the log says:\n%s\nwant text with %q and with %q", text, "cannot be replaced", "no answer")
		}
		r.take()
		time.Sleep(11 * time.Second)
		if _, notified := r.take(); !slices.Equal(notified, []types.UID{"u-1"}) {
			t.Errorf("ten seconds after a failure, told %q", notified)
		}
		time.Sleep(11 * time.Minute)
		events, _ := r.take()
		if len(events) != 1 || !strings.HasPrefix(events[0], "web CertificateOverdueForRefresh: The certificate of the signer shop.example/signer was to be replaced at ") {
			t.Errorf("events %q, want exactly one and events[0] beginning with %q",
				events,
				"web CertificateOverdueForRefresh: The certificate of the signer shop.example/signer was to be replaced at ")
		}
		time.Sleep(time.Hour)
		events, _ = r.take()
		if len(events) != 1 || !strings.HasPrefix(events[0], "web CertificateExpired: ") {
			t.Errorf("events %q, want exactly one and events[0] beginning with %q", events, "web CertificateExpired: ")
		}
		if count := r.certs.Count(); count[podcertificates.Counted{Signer: "shop.example/signer", State: podcertificates.Expired}] != 1 {
			t.Errorf("counts %v, want count 1", count)
		}
		r.server.failing(nil)
		r.wants(block("one"))
		r.server.issue(r.server.last(t, 2), block("two"), time.Hour, 2*time.Hour)
		r.wants(block("two"))
	})
}

func TestARefusalOfASignerIsFinalAndReported(t *testing.T) {
	for how, did := range map[string]string{
		certificatesv1.PodCertificateRequestConditionTypeDenied: "was denied", certificatesv1.PodCertificateRequestConditionTypeFailed: "failed",
	} {
		inBubble(t, func(r *rig) {
			r.wants("!not issued")
			r.server.refuse(r.server.last(t, 1), how, "UnsupportedKeyType", "say ECDSAP256")
			want := `web ` + how + `: PodCertificateRequest shop/req-1 ` + did + `, reason="UnsupportedKeyType", message="say ECDSAP256"`
			events, notified := r.take()
			if !slices.Equal(events, []string{want}) || !slices.Equal(notified, []types.UID{"u-1"}) {
				t.Errorf("events %q, want %q; told %q", events, want, notified)
			}
			r.wants(`!the request shop/req-1 was ` + strings.ToLower(how) + ` for good, by the reason "UnsupportedKeyType": "say ECDSAP256"; delete the pod`)
			time.Sleep(time.Hour)
			r.wants("!for good")
			r.server.last(t, 1)
		})
	}
}

func TestARequestThatVanishesIsMadeAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.wants("!shop/req-1 yet")
		<-r.server.began
		r.server.follower.Deleted(r.server.last(t, 1))
		r.wants("!is asked again for a certificate at ")
		r.take()
		time.Sleep(11 * time.Second)
		if _, notified := r.take(); !slices.Equal(notified, []types.UID{"u-1"}) {
			t.Errorf("told %q, want %q", notified, []types.UID{"u-1"})
		}
		r.wants("!shop/req-2 yet")
		begun := time.Now()
		time.Sleep(time.Second)
		r.server.follower.Listed(nil, begun.Add(-time.Second)) // a list from before the request was created
		r.wants("!shop/req-2 yet")
		r.server.follower.Listed(nil, time.Now())
		time.Sleep(21 * time.Second)
		r.wants("!shop/req-3 yet")
		r.server.follower.Listed([]runtime.Object{r.server.last(t, 3)}, time.Now())
		r.wants("!shop/req-3 yet")
	})
}

func TestPodsThatCannotHaveACertificate(t *testing.T) {
	inBubble(t, func(r *rig) {
		pod := webPod()
		pod.Annotations = map[string]string{podset.AnnotationSource: "file"}
		_, _, err := r.certs.Get(context.Background(), pod, "tls", 0, source())
		if err == nil || !strings.Contains(err.Error(), `only pods of the API server have certificates, and this one is of the source "file"`) {
			t.Errorf("Get(tls, 0) error = %v, want an error with %q",
				err, `only pods of the API server have certificates, and this one is of the source "file"`)
		}
		wrong := source()
		wrong.KeyType = "DSA"
		if _, _, err := r.certs.Get(context.Background(), webPod(), "wrong", 0, wrong); err == nil || !strings.Contains(err.Error(), `there are no keys of the keyType "DSA": say RSA3072`) {
			t.Errorf("Get(wrong, 0) error = %v, want an error with %q",
				err, `there are no keys of the keyType "DSA": say RSA3072`)
		}
		r.server.failing(errors.New("you may not"))
		r.wants("!the API server was asked for a certificate of the signer shop.example/signer: you may not")
		r.wants("!is asked again")
		r.server.failing(nil)
		time.Sleep(11 * time.Second)
		r.wants("!shop/req-1 yet")
	})
}
