package apisource

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestPodsComeAsASetAndThenOneByOne(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	r := start(t, a)
	first := r.want(podset.None, "a i:1")
	if got, want := first.Pods[0].Path, a.URL+"/api/v1/namespaces/default/pods/a"; got != want {
		t.Errorf("it was found at %s, want %s", got, want)
	}
	if first.Mode != "watch" || !first.ReadAt.Equal(r.clock.Now()) || first.Pods[0].ManagedFields != nil {
		t.Errorf("mode %q, read at %v, managed fields %v", first.Mode, first.ReadAt, first.Pods[0].ManagedFields)
	}
	a.put(pod("b", "i:1"))
	r.want(podset.Add, "b i:1")
	a.put(pod("b", "i:2"))
	r.want(podset.Update, "b i:2")
	ending := pod("b", "i:2")
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0)}
	a.put(ending)
	if got := r.want(podset.Delete, "b i:2").Pods[0]; got.DeletionTimestamp == nil || got.ManagedFields != nil {
		t.Errorf("the pod that is to end is %v", got)
	}
	a.remove("b")
	r.want(podset.Remove, "b i:2")
}

func TestItAsksAsANodeDoesInProtobuf(t *testing.T) {
	a := newAPIServer(t)
	r := start(t, a)
	r.want(podset.None)
	a.put(pod("a", "i:1"))
	r.want(podset.Add, "a i:1")
	lists, watches := a.requests(reflector.VerbList), a.requests(reflector.VerbWatch)
	if len(lists) != 1 || strings.Contains(lists[0], "resourceVersion") ||
		!strings.Contains(lists[0], "fieldSelector=spec.nodeName%3Dnode") {
		t.Errorf("the lists were %q, want one of what there is now", lists)
	}
	if len(watches) != 1 || !strings.Contains(watches[0], "resourceVersion=10") {
		t.Errorf("the watches were %q, want one from the list on", watches)
	}
	for _, accept := range a.accepts {
		if !strings.HasPrefix(accept, "application/vnd.kubernetes.protobuf") {
			t.Errorf("it accepts %q, want text beginning with %q", accept, "application/vnd.kubernetes.protobuf")
		}
	}
	metricstest.Want(t, r.registry, 1, "quartet_configmux_api_requests_total", "verb", "list", "outcome", "ok")
	metricstest.Want(t, r.registry, 1, "quartet_configmux_api_requests_total", "verb", "watch", "outcome", "ok")
	metricstest.Want(t, r.registry, 1, "quartet_configmux_api_watching")
}

func TestNothingIsAskedBeforeTheNodeHasSynced(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	r := newRig(t, a.client())
	r.nodes.Put("node", &nodev1.Node{})
	r.run()
	if first := r.until(
		"a reading",
		func(source.Reading) bool { return true },
	); !first.Failed ||
		first.Mode != "waiting for nodestatus" {
		t.Errorf("the first reading is %+v", first)
	}
	for waiting := ""; !strings.Contains(waiting, "waiting for nodestatus to register this Node"); r.pause(time.Millisecond) {
		waiting = strings.Join(r.health.Waiting(), "\n")
	}
	if requests := a.requests(reflector.VerbList); len(requests) > 0 {
		t.Errorf("asked %q before the Node was there", requests)
	}
	r.nodes.Put("node", &nodev1.Node{Synced: true})
	r.want(podset.None, "a i:1")
	if waiting := r.health.Waiting(); len(waiting) > 0 {
		t.Errorf("it waits for %q, want none", waiting)
	}
	r.nodes.Close() // nodestatus goes down
	a.put(pod("b", "i:1"))
	r.want(podset.Add, "b i:1")
}

func TestAWatchThatBreaksIsResumed(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	r := start(t, a)
	r.want(podset.None, "a i:1")
	a.put(pod("b", "i:1"))
	r.want(podset.Add, "b i:1")
	a.cutAll()
	a.put(pod("c", "i:1"))
	r.want(podset.Add, "c i:1")
	if lists := a.requests(reflector.VerbList); len(lists) != 1 {
		t.Errorf("%d lists, want that the watch goes on where it was", len(lists))
	}
}

func TestAHistoryThatIsForgottenIsListedAgain(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	a.put(pod("b", "i:1"))
	r := start(t, a)
	before := r.want(podset.None, "a i:1", "b i:1")
	a.refuse(func(_ http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) })
	a.cutAll()
	r.wrong("cannot")
	a.remove("b")
	a.put(pod("c", "i:1"))
	a.forget()
	a.refuse(nil)
	after := r.want(podset.None, "a i:1", "c i:1")
	if after.Pods[0].Pod != before.Pods[0].Pod {
		t.Error("the pod that stayed the same is another pointer")
	}
}

func TestARefusalIsReportedAndRemovesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		with http.HandlerFunc
		want string
	}{
		"unauthorized": {refuseWith(401, metav1.StatusReasonUnauthorized, "Unauthorized"), "(401): check the client certificate or the token in the kubeconfig"},
		"forbidden":    {refuseWith(403, metav1.StatusReasonForbidden, `pods is forbidden: User "x" cannot list`), `(403): pods is forbidden: User "x" cannot list: let the user`},
		"busy":         {refuseWith(429, metav1.StatusReasonTooManyRequests, "later"), "overloaded (429)"},
		"broken":       {refuseWith(500, metav1.StatusReasonInternalError, "etcd is gone"), "the status 500: etcd is gone"},
		"cut off":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "check "},
		"no pods":      {func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write([]byte("hello")) }, "check "},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPIServer(t)
			a.put(pod("a", "i:1"))
			r := start(t, a)
			r.want(podset.None, "a i:1")
			a.refuse(tc.with)
			a.cutAll()
			e := r.wrong(tc.want)
			if e.Path != a.URL || !strings.Contains(e.Message, "continue to run in their last known form") ||
				strings.Contains(e.Message, "hunter2") {
				t.Errorf("error %+v, want Path %v, Message with %q and Message without %q",
					e, a.URL, "continue to run in their last known form", "hunter2")
			}
			a.refuse(nil)
			r.mended()
			a.put(pod("b", "i:1"))
			if got := texts(
				r.until("the other pod", func(reading source.Reading) bool { return slices.Contains(texts(reading), "b i:1") }),
			); len(got) == 0 {
				t.Errorf("pods %q, want at least one", got)
			}
		})
	}
}

func TestAServerThatIsAwayIsWaitedFor(t *testing.T) {
	a := newAPIServer(t)
	client := a.client()
	a.Close()
	r := newRig(t, client).run()
	for range 3 {
		if e := r.wrong("connection refused: check that it runs"); !strings.Contains(
			e.Message,
			"none of its pods is known yet",
		) {
			t.Errorf("error %+v, want Message with %q", e, "none of its pods is known yet")
		}
	}
	if got := metricstest.Value(
		t,
		r.registry,
		"quartet_configmux_api_requests_total",
		"verb",
		"list",
		"outcome",
		"failed",
	); got < 3 {
		t.Errorf("%v failures are counted", got)
	}
	// One trace for the failure, not one for each retry.
	if spans := r.spans.GetSpans(); len(spans) != 1 || spans[0].Name != "source.read" ||
		spans[0].Status.Description == "" {
		t.Errorf("spans %v, want exactly one, spans[0].Name %q and some spans[0].Status.Description", spans, "source.read")
	}
}

func TestAHangingServerIsReportedAndWaitedFor(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("a", "i:1"))
	hang := func(_ http.ResponseWriter, request *http.Request) { <-request.Context().Done() }
	a.refuse(hang)
	r := newRig(t, a.client())
	r.limit = 2 * time.Second
	r.run()
	r.wrong("cannot list pods: it does not answer in time")
	a.refuse(nil)
	r.want(podset.None, "a i:1")
	a.refuse(func(out http.ResponseWriter, request *http.Request) {
		if request.URL.Query().Get("watch") == "true" {
			hang(out, request)
			return
		}
		a.list(out)
	})
	a.cutAll()
	r.wrong("cannot watch pods: it does not answer in time")
	a.refuse(nil)
	r.mended()
}

func TestAStrangersCertificateIsRefused(t *testing.T) {
	a := newAPIServer(t)
	r := newRig(t, clientOf(t, &rest.Config{Host: a.URL})).run()
	r.wrong("not signed by an authority that the kubeconfig trusts")
}

func TestTheAgentsOwnAnnotationsAreNotTakenFromAPod(t *testing.T) {
	a := newAPIServer(t)
	p := pod("a", "i:1")
	p.Annotations = map[string]string{
		podset.AnnotationSource: "file", podset.AnnotationSeen: "yesterday", "quartet.dev/traceparent": "00-1",
		podset.AnnotationMirror: "hash", podset.AnnotationHash: "hash", "mine": "kept",
	}
	a.put(p)
	r := start(t, a)
	got := r.want(podset.None, "a i:1").Pods[0].Annotations
	if len(got) != 3 || got[podset.AnnotationMirror] != "hash" || got[podset.AnnotationHash] != "hash" ||
		got["mine"] != "kept" {
		t.Errorf("annotations %v, want 3 entries, got[podset.AnnotationMirror] %q, got[podset.AnnotationHash] %q and mine %q",
			got, "hash", "hash", "kept")
	}
}

func TestAPodThatCannotRunIsLeftOutAndReported(t *testing.T) {
	a := newAPIServer(t)
	a.put(pod("good", "i:1"))
	nameless, strange, climber := pod("x", "i:1"), pod("strange", "i:1"), pod("climber", "i:1")
	nameless.UID, strange.Spec.NodeName, climber.UID = "", "other", ".."
	for _, p := range []*v1.Pod{nameless, strange, climber} {
		a.put(p)
	}
	r := start(t, a)
	reading := r.want(podset.None, "good i:1")
	var fields []string
	for _, e := range reading.Errors {
		fields = append(fields, e.Pod+" "+e.Field)
	}
	if want := []string{
		"default/climber metadata.uid",
		"default/strange spec.nodeName",
		"default/x metadata.uid",
	}; !slices.Equal(
		fields,
		want,
	) {
		t.Errorf("errors %q, want %q", fields, want)
	}
	for _, name := range []string{"strange", "x", "climber"} {
		a.remove(name)
	}
	r.mended()
}

func TestAPodWhoseSourceMayNotHaveWhatItAsksFor(t *testing.T) {
	a := newAPIServer(t)
	wants, mirror, grows := pod("wants", "i:1"), pod("mirror", "i:1"), pod("grows", "i:1")
	wants.Spec.HostNetwork, mirror.Spec.HostNetwork = true, true
	mirror.Annotations = map[string]string{podset.AnnotationMirror: "hash"}
	for _, p := range []*v1.Pod{wants, mirror, grows} {
		a.put(p)
	}
	r := newRig(t, a.client())
	r.cfg.Allowed = privilege.Allowed{}
	r.run()
	reading := r.want(podset.None, "grows i:1", "mirror i:1")
	if len(reading.Errors) != 1 || reading.Errors[0].Field != "spec.hostNetwork" ||
		!strings.Contains(reading.Errors[0].Message, "it is left out") {
		t.Errorf("errors %v, want exactly one, reading.Errors[0].Field %q and reading.Errors[0].Message with %q",
			reading.Errors, "spec.hostNetwork", "it is left out")
	}
	yes := true
	grows.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		Name: "debug", Image: "i:1", SecurityContext: &v1.SecurityContext{Privileged: &yes},
	}}}
	a.put(grows)
	if e := r.wrong("it continues to run unchanged"); e.Field != "spec.ephemeralContainers[0].securityContext.privileged" {
		t.Errorf("error %v, want Field %q", e, "spec.ephemeralContainers[0].securityContext.privileged")
	}
	// Its termination is not refused.
	grows.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0)}
	a.put(grows)
	r.want(podset.Delete, "grows i:1")
}

func TestAChangeHasATrace(t *testing.T) {
	a := newAPIServer(t)
	r := start(t, a)
	r.want(podset.None)
	a.put(pod("a", "i:1"))
	cause := r.want(podset.Add, "a i:1").Causes[a.URL]
	spans := r.spans.GetSpans()
	if cause == nil || len(spans) != 1 {
		t.Fatalf("cause %v, spans %v; want one trace, and none for a list without news", cause, spans)
	}
	attributes := map[string]string{}
	for _, attribute := range spans[0].Attributes {
		attributes[string(attribute.Key)] = attribute.Value.AsString()
	}
	a.put(pod("a", "i:1")) // only the resource version changes
	if again := r.want(podset.Update, "a i:1"); len(again.Causes) > 0 {
		t.Errorf("causes %v of no change", again.Causes)
	}
	if spans[0].Name != "source.read" || attributes["url.full"] != a.URL || attributes["quartet.source"] != "api" {
		t.Errorf("span %s %v, want %q, url.full %v and quartet.source %q",
			spans[0].Name, attributes, "source.read", a.URL, "api")
	}
}

// TestTheTargetMayBecomeKnownLater: the kubeconfig of a node that has not joined does not exist yet.
func TestTheTargetMayBecomeKnownLater(t *testing.T) {
	r := newRig(t, clientOf(t, &rest.Config{Host: "https://api.example:6443"}))
	server := "/etc/kubernetes/kubelet.conf"
	r.cfg.Server = func() string { return server }
	s := New(r.cfg)
	if got := s.Target(); got != server {
		t.Errorf("the target is %s, want %s", got, server)
	}
	server = "https://api.example:6443"
	if got := s.Target(); got != server {
		t.Errorf("the target is then %s, want %s", got, server)
	}
}
