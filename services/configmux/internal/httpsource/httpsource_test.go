package httpsource

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestASinglePodAndAListAreTakenAsYAMLAndAsJSON(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(manifest("a", "i:1"))
	r := start(t, w.URL+"/pods")
	got := r.next()
	r.want(got, 0, "a-node i:1")
	if got.Mode != "polling" || !got.ReadAt.Equal(r.clock.Now()) {
		t.Errorf("mode %s, read at %s", got.Mode, got.ReadAt)
	}
	pod := got.Pods[0]
	if pod.Path != w.URL+"/pods" || pod.Namespace != "default" || pod.Spec.NodeName != "node" || pod.UID == "" ||
		pod.Annotations["kubernetes.io/config.hash"] != string(pod.UID) {
		t.Errorf("pod %v, want what a static pod gets", pod.ObjectMeta)
	}
	w.answer(list("a", "i:2", "b", "i:1"))
	r.want(r.poll(), 0, "a-node i:2", "b-node i:1")
	w.answer("apiVersion: v1\nkind: List\nitems: []\n")
	r.want(r.poll(), 0)
	if got := w.requests()[0]; got.Method != http.MethodGet || got.URL.Path != "/pods" {
		t.Errorf("asked with %s %s, want %s and Path %q", got.Method, got.URL, http.MethodGet, "/pods")
	}
}

// The UID depends on the content, the node and the address, but not on a password, which may change.
func TestTheUIDOfAPodIsOfItsAddress(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(manifest("a", "i:1"))
	uid := func(url string) string { return string(start(t, url).next().Pods[0].UID) }
	plain, elsewhere := uid(w.URL+"/pods"), uid(w.URL+"/other")
	withPassword := uid(strings.Replace(w.URL, "http://", "http://node:secret@", 1) + "/pods")
	if plain == elsewhere || plain != withPassword {
		t.Errorf("UIDs %s, %s elsewhere, %s with a password", plain, elsewhere, withPassword)
	}
}

func TestTheServerIsAskedOncePerPeriod(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(manifest("a", "i:1"))
	r := start(t, w.URL)
	r.next()
	r.clock.Step(period - 1)
	r.clock.Step(1)
	r.next()
	r.stop()
	if n := len(w.requests()); n != 2 {
		t.Errorf("asked %d times, want at once and after a period", n)
	}
}

func TestTheSameBytesAreNotDecodedAgain(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(manifest("a", "i:1"))
	r := start(t, w.URL)
	first := r.next()
	spans := len(r.spans.GetSpans())
	second := r.poll()
	r.want(second, 0, "a-node i:1")
	if second.Pods[0].Pod != first.Pods[0].Pod || len(second.Causes) != 0 || len(r.spans.GetSpans()) != spans {
		t.Error("the same bytes were decoded or traced again")
	}
	if !second.ReadAt.Equal(first.ReadAt.Add(period)) {
		t.Errorf("read at %s, want a period after %s", second.ReadAt, first.ReadAt)
	}
	w.does(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusTeapot) })
	r.poll()
	for outcome, want := range map[string]float64{"changed": 1, "unchanged": 1, "failed": 1} {
		metricstest.Want(t, r.registry, want, "quartet_configmux_http_polls_total", "outcome", outcome)
	}
}

func TestAChangeIsTraced(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(manifest("a", "i:1"))
	r := start(t, strings.Replace(w.URL, "http://", "http://node:secret@", 1)+"/pods?key=secret")
	got := r.next()
	span := r.spans.GetSpans()[0]
	want := attribute.NewSet(attribute.String("url.full", w.URL+"/pods?…"), attribute.String("quartet.source", "http"))
	if attrs := attribute.NewSet(
		span.Attributes...); span.Name != "source.read" || !attrs.Equals(&want) ||
		span.Parent.IsValid() {
		t.Errorf("span %s %v", span.Name, span.Attributes)
	}
	if got.Causes[w.URL+"/pods?…"] == nil {
		t.Errorf("causes %v, want the trace of the address", got.Causes)
	}
}

// The rules are those of files; errors do not affect valid pods.
func TestAWrongPodKeepsItsLastGoodVersionBesideGoodOnes(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(list("a", "i:1", "b", "i:1", "c", "i:1"))
	r := start(t, w.URL)
	r.want(r.next(), 0, "a-node i:1", "b-node i:1", "c-node i:1")
	w.answer(list("a", "i:2", "b", ""))
	got := r.poll()
	r.want(got, 1, "a-node i:2", "b-node i:1")
	wantError(
		t,
		got,
		source.Error{
			Pod:     "default/b-node",
			Field:   "items[1].spec.containers[0].image",
			Message: "the last good version of the pod is kept",
		},
	)
	w.answer(strings.Replace(manifest("a", "i:3"), "spec:", "spek:", 1))
	got = r.poll()
	r.want(got, 1, "a-node i:2")
	wantError(
		t,
		got,
		source.Error{Pod: "default/a-node", Field: "spek", Message: "the last good version of the pod is kept"},
	)
}

// On a node without an API server the answer may have config maps and secrets beside the pods. Other nodes refuse them.
func TestObjectsStandBesideThePods(t *testing.T) {
	const objects = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: %s}\n---\n"
	w := serve(t, httptest.NewServer)
	w.answer(fmt.Sprintf(objects, "v") + manifest("a", "i:1"))
	r := start(t, w.URL, func(cfg *Config, _ *Source) { cfg.Standalone = true })
	got := r.next()
	r.want(got, 0, "a-node i:1")
	if len(got.Objects) != 2 || got.Objects[0].String() != "configmap default/c" ||
		string(got.Objects[1].Secret.Data["k"]) != "v" ||
		got.Objects[1].Path != w.URL {
		t.Errorf("objects %v, want 2 entries, got.Objects[0] %q, k %q and got.Objects[1].Path %v",
			got.Objects, "configmap default/c", "v", w.URL)
	}
	w.answer(fmt.Sprintf(objects, "5") + fmt.Sprintf(objects, "w"))
	got = r.poll()
	if len(got.Objects) != 2 || string(got.Objects[1].Secret.Data["k"]) != "w" || len(got.Errors) != 2 {
		t.Errorf("objects %v, errors %v; want the good one, and that the config map is there twice", got.Objects, got.Errors)
	}
	w.answer(strings.SplitAfterN(fmt.Sprintf(objects, "5"), "---\n", 2)[1])
	got = r.poll()
	if len(got.Objects) != 1 || string(got.Objects[0].Secret.Data["k"]) != "w" ||
		got.Errors[0].Object != "secret default/s" ||
		got.Errors[0].Field != "stringData[k]" {
		t.Errorf("objects %v, errors %v; want the last good version", got.Objects, got.Errors)
	}

	w.answer(fmt.Sprintf(objects, "v") + manifest("a", "i:1"))
	member := start(t, w.URL)
	if got := member.next(); len(got.Objects) != 0 || len(got.Errors) != 2 || len(got.Pods) != 1 {
		t.Errorf("with an API server: objects %v, errors %v, %d pods, want none, 2 entries and 1",
			got.Objects, got.Errors, len(got.Pods))
	}
}

func wantError(t *testing.T, reading source.Reading, want source.Error) {
	t.Helper()
	for _, e := range reading.Errors {
		if e.Pod == want.Pod && strings.HasSuffix(want.Field, e.Field) && strings.Contains(e.Message, want.Message) {
			return
		}
	}
	t.Errorf("errors %v, want one like %v", reading.Errors, want)
}

func TestTwoPodsOfOneNameInOneAnswer(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.answer(list("a", "i:1", "a", "i:2"))
	r := start(t, w.URL)
	got := r.next()
	r.want(got, 1, "a-node i:1")
	wantError(
		t,
		got,
		source.Error{Pod: "default/a-node", Field: "metadata.name", Message: "is already given; this one is left out"},
	)
}

// An empty body is an empty source and an error, as for a kubelet. Unlike there, the same pods may return after it.
func TestAnEmptyBodyIsAnEmptySourceAndAnError(t *testing.T) {
	w := serve(t, httptest.NewServer)
	empty := func(got source.Reading) {
		t.Helper()
		if got.Failed || len(got.Pods) > 0 || len(got.Errors) != 1 || got.Errors[0].Path != w.URL ||
			!strings.HasPrefix(got.Errors[0].Message, "the answer is empty, so no pod is desired any more") {
			t.Fatalf("reading %+v, want one without pods and with an error", got)
		}
	}
	w.answer("")
	r := start(t, w.URL)
	first := r.next()
	empty(first)
	w.answer(manifest("a", "i:1"))
	r.want(r.poll(), 0, "a-node i:1")
	w.answer("")
	gone := r.poll()
	empty(gone)
	if !gone.ReadAt.Equal(r.clock.Now()) || gone.Causes[w.URL] == nil {
		t.Errorf("read at %s with the causes %v, want it now and with a trace", gone.ReadAt, gone.Causes)
	}
	again := r.poll()
	empty(again)
	if len(again.Causes) > 0 || !again.Errors[0].SeenAt.After(gone.Errors[0].SeenAt) ||
		again.Errors[0].Message != first.Errors[0].Message {
		t.Errorf("the same again gives %+v after %+v, want the same error, seen later", again, gone.Errors)
	}
	w.does(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusBadGateway) })
	failed := r.poll()
	if !failed.Failed || len(failed.Errors) != 2 {
		t.Errorf("a failure after it gives %+v, want both errors", failed)
	}
	w.answer(manifest("a", "i:1"))
	r.want(r.poll(), 0, "a-node i:1")
}

// A body that cannot be parsed says nothing about the desired pods.
func TestABodyThatCannotBeParsedKeepsEverything(t *testing.T) {
	for name, body := range map[string]string{
		"no YAML": "a: [", "another kind": "apiVersion: v1\nkind: Service\n", "text": "<html>Service temporarily unavailable</html>",
		"binary": "\x00\x01\x02", "invalid UTF-8": "kind: \xff", "blank": "\n \n", "half": manifest("a", "i:2")[:30],
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, httptest.NewServer)
			w.answer(body)
			r := start(t, w.URL)
			if got := r.next(); !got.Failed || len(got.Errors) == 0 ||
				!strings.Contains(got.Errors[0].Message, "running pods are not changed") {
				t.Fatalf("reading %+v, want a source that has not spoken", got)
			}
			if got := r.poll(); !got.Failed {
				t.Fatal("the source has spoken once the same bytes came again")
			}
			w.answer(manifest("a", "i:1"))
			r.want(r.poll(), 0, "a-node i:1")
			w.answer(body)
			got := r.poll()
			r.want(got, len(got.Errors), "a-node i:1")
			if len(got.Errors) == 0 || got.Errors[0].Path != w.URL {
				t.Errorf("errors %v, want at least one and got.Errors[0].Path %v", got.Errors, w.URL)
			}
			w.answer(manifest("a", "i:1"))
			r.want(r.poll(), 0, "a-node i:1")
		})
	}
}

// A failure is logged three times: the first time by the mux, which this test does not have.
func TestAFailureIsRepeatedInTheLogTwice(t *testing.T) {
	w := serve(t, httptest.NewServer)
	w.does(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusTeapot) })
	r := start(t, w.URL)
	first := r.next()
	for i, want := range []int{1, 2, 2, 2} {
		got := r.poll()
		if got.Errors[0].Message != first.Errors[0].Message || !got.Errors[0].SeenAt.After(first.Errors[0].SeenAt) {
			t.Errorf("error %v, want the same as before and later", got.Errors)
		}
		if n := strings.Count(r.log.String(), "status 418"); n != want {
			t.Errorf("after %d times more it is in the log %d times, want %d", i+1, n, want)
		}
	}
	w.does(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusNotFound) })
	r.poll()
	if strings.Contains(r.log.String(), "status 404") {
		t.Error("another failure is logged by the source too, and not by the mux alone")
	}
	r.poll()
	if !strings.Contains(r.log.String(), "status 404") {
		t.Error("another failure does not begin anew")
	}
	w.answer(manifest("a", "i:1"))
	r.want(r.poll(), 0, "a-node i:1")
}
