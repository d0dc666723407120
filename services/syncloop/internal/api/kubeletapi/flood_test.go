package kubeletapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	serving "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/apiauth"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

// reviewer is an API server that lets the allowed user in, and whose reviews of all other tokens hang.
type reviewer struct {
	end chan struct{}

	mu               sync.Mutex
	hanging, letInto int
}

func (r *reviewer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var answer any
	switch path.Base(req.URL.Path) {
	case "tokenreviews":
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Status.Authenticated = review.Spec.Token == allowed
		if !review.Status.Authenticated {
			r.hang(req.Context())
			break
		}
		review.Status.User.Username = "robot"
		r.note(0, 1)
		answer = review
	case "subjectaccessreviews":
		answer = authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}
	}
	w.Header().Set("Content-Type", "application/json")
	if answer == nil {
		answer = authenticationv1.TokenReview{}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (r *reviewer) hang(ctx context.Context) {
	r.note(1, 0)
	defer r.note(-1, 0)
	select {
	case <-r.end:
	case <-ctx.Done():
	}
}

func (r *reviewer) note(hanging, letInto int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hanging += hanging
	r.letInto += letInto
}

func (r *reviewer) counts() (hanging, letInto int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hanging, r.letInto
}

// guardOf returns the product's guard with an API server.
func guardOf(t *testing.T, reviews http.Handler, clock *clocktesting.FakeClock) *apiauth.Guard {
	t.Helper()
	server := httptest.NewServer(reviews)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: a,
contexts: [{name: a, context: {cluster: a, user: a}}], clusters: [{name: a, cluster: {server: %q}}],
users: [{name: a, user: {}}]}`, server.URL), 0o600))
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: kubeconfig, Service: nodeconfig.SyncLoop, QPS: 1000, Burst: 1000, ContentType: "application/json",
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	return apiauth.New(ctx, apiauth.Config{
		NodeName: "node-1", Tokens: client.Authentication, TokenTTL: 2 * time.Minute, Access: client.Authorization,
		AllowedTTL: 5 * time.Minute, DeniedTTL: 30 * time.Second, Clock: clock, Logger: slog.New(slog.DiscardHandler),
	})
}

// attacker sends wrong tokens from an address of its own, each over a connection of its own.
type attacker struct {
	client *http.Client
	to     string
	sent   int
	all    sync.WaitGroup
}

func newAttacker(to string) *attacker {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	return &attacker{to: to, client: &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}}
}

// send sends tokens, and does not wait for the answers.
func (a *attacker) send(ctx context.Context, tokens int) {
	for range tokens {
		a.sent++
		token := fmt.Sprintf("made-up-%d", a.sent)
		a.all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.to+"/pods", http.NoBody)
			if err != nil {
				return
			}
			req.Header.Set("Authorization", "Bearer "+token)
			answer, err := a.client.Do(req)
			if err == nil { // otherwise the connection made room for another one
				_ = answer.Body.Close()
			}
		})
	}
}

// TestExecWorksDuringAFloodOfWrongTokens has one peer send made-up tokens, whose reviews hang, while an allowed user of
// another peer uses a command and runs others, also after the answer for his token has expired.
func TestExecWorksDuringAFloodOfWrongTokens(t *testing.T) {
	reviews := &reviewer{end: make(chan struct{})}
	now := clocktesting.NewFakeClock(time.Now())
	r := newRig(t)
	r.cfg.Guard = guardOf(t, reviews, now).Protect
	serveStreams(t, r, &insides{run: func(in io.Reader, out, _ io.Writer, _ <-chan serving.TerminalSize) error {
		_, err := io.Copy(out, in)
		return err
	}})
	api := Node(r.cfg)
	t.Cleanup(api.Close)
	to := serveTLS(t, api)

	in, typed := io.Pipe()
	shown, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- execOf(t, t.Context(), to, in, out) }()
	echo := func() {
		t.Helper()
		_, err := io.WriteString(typed, "ping")
		require.NoError(t, err)
		_, err = io.ReadFull(shown, make([]byte, 4))
		require.NoError(t, err)
	}
	echo()
	ctx, stop := context.WithCancel(t.Context())
	const tokens = 150
	wrong := newAttacker(to)
	wrong.send(ctx, tokens)
	eventually.That(t, "the API server has as many questions as it gets at a time", func() bool {
		hanging, _ := reviews.counts()
		return hanging >= 16
	})
	for range 3 {
		wrong.send(ctx, tokens)
		_, before := reviews.counts()
		now.Step(3 * time.Minute) // the answer for the token expires
		var printed strings.Builder
		if err := execOf(t, t.Context(), to, strings.NewReader("another"), &printed); err != nil || printed.String() != "another" {
			t.Errorf("another command has printed %q, %v, want %q", &printed, err, "another")
		}
		if _, after := reviews.counts(); after == before {
			t.Error("the token was not reviewed again")
		}
		echo()
	}
	stop()
	close(reviews.end)
	wrong.all.Wait()
	echo()
	_ = typed.Close()
	if err := <-ended; err != nil {
		t.Errorf("the command ended with %v", err)
	}
}
