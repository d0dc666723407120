package syncloop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/require"
)

// secretToken is the beginning of every token in these tests.
const secretToken = "hunter2"

// tokenServer is an API server that only issues tokens.
type tokenServer struct {
	mu     sync.Mutex
	issued []string
	// refuses is the message with which requests are rejected; empty if tokens are issued.
	refuses string
}

// ServeHTTP implements http.Handler. A token is valid for 15 s, so it is replaced after 10 s.
func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	if s.refuses != "" {
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: s.refuses})
		return
	}
	var request authenticationv1.TokenRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.issued = append(s.issued, fmt.Sprintf("%s %s for %v of %s", r.Method, r.URL.Path, request.Spec.Audiences, request.Spec.BoundObjectRef.UID))
	request.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}
	request.Spec.ExpirationSeconds = ptr.To[int64](15)
	request.Status.Token = fmt.Sprintf("%s-%d", secretToken, len(s.issued))
	_ = json.NewEncoder(w).Encode(request)
}

func (s *tokenServer) refuse(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = message
}

func (s *tokenServer) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.issued...)
}

// join configures syncloop for a cluster with the given API server.
func (m *machine) join(s *tokenServer) {
	server := httptest.NewServer(s)
	m.t.Cleanup(server.Close)
	m.cfg.Kubeconfig, m.cfg.Kubelet.ContentType = filepath.Join(m.t.TempDir(), "kubeconfig"), runtime.ContentTypeJSON
	text := "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n" +
		"clusters: [{name: a, cluster: {server: '" + server.URL + "'}}]\n"
	if err := os.WriteFile(m.cfg.Kubeconfig, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// withToken adds a volume with a token to a pod.
func withToken(pod *v1.Pod) *v1.Pod {
	pod.Spec.ServiceAccountName = "robot"
	return withVolume(pod, "identity", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: ptr.To[int64](600), Path: "token"}},
	}}})
}

// token returns the content of a pod's token file.
func (m *machine) token(uid types.UID) string {
	content, err := os.ReadFile(filepath.Join(m.cfg.RootDir, "pods", string(uid), "volumes/kubernetes.io~projected/identity/token"))
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// TestAPodHasATokenThatIsReplaced checks that a token is replaced without a sync of the pod, and that no token appears
// in a log or a span.
func TestAPodHasATokenThatIsReplaced(t *testing.T) {
	require.Root(t, "mounting")
	m, api, log := newMachine(t), &tokenServer{}, &safeBuffer{}
	m.tel.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	m.cfg.Kubelet.SyncFrequency.Duration = time.Hour
	m.join(api)
	api.refuse("the node may not")
	m.put(withToken(newPod("u1", "web", "a")))
	m.configmux.speak()
	m.start()
	m.eventually("web says that it waits for the token", func() bool {
		pod := m.pod("u1")
		return pod != nil && strings.Contains(pod.Status.Message, `volume "identity" : projected.sources[0].serviceAccountToken: service account default/robot: the API server was asked for a token: the node may not`)
	})
	api.refuse("")
	m.eventually("web is ready", m.ready("u1"))
	if got := m.token("u1"); got != secretToken+"-1" {
		t.Errorf("the file has %q, want %q", got, secretToken+"-1")
	}
	m.eventually("it has another token", func() bool { return m.token("u1") == secretToken+"-2" })
	if want := "POST /api/v1/namespaces/default/serviceaccounts/robot/token for [vault] of u1"; api.all()[1] != want {
		t.Errorf("asked %q, want %q", api.all()[1], want)
	}
	end := func() {
		m.configmux.level.Delete("u1")
		m.eventually("nothing is left", func() bool {
			left, err := os.ReadDir(filepath.Join(m.cfg.RootDir, "pods"))
			return err == nil && len(left) == 0 && len(m.pods()) == 0
		})
	}
	end()
	issued := len(api.all())
	m.put(withToken(newPod("u1", "web", "a")))
	m.eventually("one that comes back has a token of its own", func() bool { return m.token("u1") == fmt.Sprintf("%s-%d", secretToken, issued+1) })
	end()
	for _, span := range m.spans.Ended() {
		if text := fmt.Sprintf("%v %v %v", span.Attributes(), span.Events(), span.Status()); strings.Contains(text, secretToken) {
			t.Errorf("the span %s has a token: %s, want text without %q", span.Name(), text, secretToken)
		}
	}
	if text := log.String(); strings.Contains(text, secretToken) || !strings.Contains(text, "the node may not") {
		t.Errorf("the log has a token, or no reason for the failure:\n%s", text)
	}
}

// safeBuffer is a buffer for concurrent use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestWithoutAnAPIServerAPodWaitsForItsTokenAndSaysWhatToDo(t *testing.T) {
	require.Root(t, "mounting")
	m := newMachine(t)
	m.put(withToken(newPod("u1", "web", "a")))
	m.configmux.speak()
	m.start()
	m.eventually("web says so", func() bool {
		pod := m.pod("u1")
		return pod != nil && pod.Status.Phase == v1.PodPending &&
			strings.Contains(pod.Status.Message, "this node has no tokens to give; leave the source out")
	})
}

func TestAKubeconfigThatIsWrongEndsTheStart(t *testing.T) {
	m := newMachine(t)
	m.join(&tokenServer{})
	if err := os.WriteFile(m.cfg.Kubeconfig, []byte("kind: Config\napiVersion: v1\ncurrent-context: other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), m.cfg, m.tel); err == nil || !strings.Contains(err.Error(), m.cfg.Kubeconfig+": ") {
		t.Errorf("run() error = %v, want an error with %q", err, m.cfg.Kubeconfig+": ")
	}
}
