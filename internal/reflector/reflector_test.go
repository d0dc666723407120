package reflector_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/reflector"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told has one string for each call of a handler.
type calls chan string

func (c calls) Listed(objects []runtime.Object, _ time.Time) {
	text := "listed"
	for _, object := range objects {
		text += " " + object.(*v1.Secret).Name
	}
	c <- text
}
func (c calls) Changed(object runtime.Object) { c <- "changed " + object.(*v1.Secret).Name }
func (c calls) Deleted(object runtime.Object) { c <- "deleted " + object.(*v1.Secret).Name }
func (c calls) ListFailed(error)              { c <- "list failed" }

// apiServer answers the requests of a reflector: the channels have the next list and the next watch.
type apiServer struct {
	lists   chan any
	watches chan []metav1.WatchEvent
	queries chan string
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		offer(a.queries, "list "+r.URL.Path+" rv="+r.URL.Query().Get("resourceVersion"))
		select {
		case answer := <-a.lists:
			if status, ok := answer.(metav1.Status); ok {
				w.WriteHeader(int(status.Code))
			}
			_ = json.NewEncoder(w).Encode(answer)
		case <-r.Context().Done():
		}
		return
	}
	w.(http.Flusher).Flush() // the watch begins
	for {
		select {
		case events := <-a.watches:
			if events == nil {
				return
			}
			for _, event := range events {
				_ = json.NewEncoder(w).Encode(event)
			}
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func secret(name string) v1.Secret {
	return v1.Secret{
		TypeMeta:   metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", ResourceVersion: "7"},
	}
}

func event(kind string, object any) metav1.WatchEvent {
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: raw}}
}

func list(names ...string) v1.SecretList {
	l := v1.SecretList{
		TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"},
	}
	for _, name := range names {
		l.Items = append(l.Items, secret(name))
	}
	return l
}

func refusal(code int32, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason,
	}
}

// start runs a reflector of the secrets of shop against an API server.
func start(t *testing.T, timeout time.Duration) (*apiServer, calls, chan string) {
	a := &apiServer{lists: make(chan any, 8), watches: make(chan []metav1.WatchEvent, 8), queries: make(chan string, 100)}
	server := httptest.NewServer(a)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	calls, outcomes := make(calls), make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- reflector.Run(ctx, reflector.Config{
			Client: client.CoreV1().RESTClient(), Resource: "secrets", Namespace: "shop", Empty: &v1.Secret{}, Handler: calls,
			Clock: clock.RealClock{}, Timeout: timeout, MaxBackoff: 50 * time.Millisecond,
			Requested: func(verb reflector.Verb, _ time.Time, err error) {
				outcome := string(verb) + " ok"
				if err != nil {
					outcome = string(verb) + ": " + err.Error()
				}
				offer(outcomes, outcome)
			},
		})
	}()
	t.Cleanup(func() {
		cancel()
		for {
			select {
			case <-calls:
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("Run: %v, want %v", err, context.Canceled)
				}
				server.Close()
				http.DefaultTransport.(*http.Transport).CloseIdleConnections()
				return
			}
		}
	})
	return a, calls, outcomes
}

// offer sends without blocking, if the previous text was read.
func offer(to chan<- string, text string) {
	select {
	case to <- text:
	default:
	}
}

// next returns the next text, or fails after ten seconds.
func next(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case got := <-from:
		return got
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was told within 10 s")
		return ""
	}
}

func TestAHandlerGetsTheListAndTheChanges(t *testing.T) {
	a, calls, outcomes := start(t, 0)
	a.lists <- list("one", "two")
	got := []string{next(t, calls), next(t, outcomes), next(t, outcomes)}
	a.watches <- []metav1.WatchEvent{event("ADDED", secret("three")), event("MODIFIED", secret("one")), event("DELETED", secret("two"))}
	got = append(got, next(t, calls), next(t, calls), next(t, calls))
	want := []string{"listed one two", "list ok", "watch ok", "changed three", "changed one", "deleted two"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, want := next(t, a.queries), "list /api/v1/namespaces/shop/secrets rv="; got != want {
		t.Errorf("it has requested %q, not %q: the latest state", got, want)
	}
}

func TestAFailedListIsReportedAndRetried(t *testing.T) {
	a, calls, outcomes := start(t, 0)
	a.lists <- refusal(http.StatusForbidden, metav1.StatusReasonForbidden)
	if got := next(t, calls); got != "list failed" {
		t.Errorf("it has told %q, want %q", got, "list failed")
	}
	if got := next(t, outcomes); got == "list ok" {
		t.Errorf("the outcome is %q", got)
	}
	a.lists <- list("one")
	if got := next(t, calls); got != "listed one" {
		t.Errorf("it has told %q, want %q", got, "listed one")
	}
}

func TestAnErrorWithinAWatchIsAnOutcomeAndIsFollowedByAList(t *testing.T) {
	a, calls, outcomes := start(t, 0)
	a.lists <- list("one")
	got := []string{next(t, calls), next(t, outcomes), next(t, outcomes)}
	expired := refusal(http.StatusGone, metav1.StatusReasonExpired)
	expired.Message = "too old"
	a.watches <- []metav1.WatchEvent{event("ERROR", expired)}
	a.watches <- nil
	a.lists <- list("two")
	got = append(got, next(t, outcomes), next(t, calls))
	want := []string{"listed one", "list ok", "watch ok", "watch: too old", "listed two"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	next(t, a.queries)
	if got, want := next(t, a.queries), "list /api/v1/namespaces/shop/secrets rv="; got != want {
		t.Errorf("it has requested %q, not %q: the latest state", got, want)
	}
}

func TestAListThatHangsFails(t *testing.T) {
	a, calls, _ := start(t, time.Second) // a busy machine answers a request within it
	if got := next(t, calls); got != "list failed" {
		t.Errorf("it has told %q, want %q", got, "list failed")
	}
	for begun := time.Now(); time.Since(begun) < time.Minute; {
		select {
		case a.lists <- list("one"): // a request that has ended may have taken one
		default:
		}
		if got := next(t, calls); got == "listed one" {
			return
		}
	}
	t.Error("a list that is answered was not told within a minute")
}
