package staticpod_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

var origin = staticpod.Origin{Source: "file", Allowed: everything, Node: "node-1", Path: "/manifests/web.yaml"}

// everything lets the pods of every source have every privilege.
var everything = privilege.Everything()

const web = `apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: main
    image: example.com/web:1
`

// onePod decodes a manifest that must be one good pod.
func onePod(t *testing.T, manifest string) *v1.Pod {
	t.Helper()
	got := staticpod.Decode([]byte(manifest), origin)
	if len(got.Problems) != 0 || len(got.Pods) != 1 || got.Incomplete {
		t.Fatalf(
			"Decode: %d pods, problems %v, incomplete %v; want one good pod",
			len(got.Pods),
			got.Problems,
			got.Incomplete,
		)
	}
	return got.Pods[0]
}

func TestDefaultsOfAStaticPod(t *testing.T) {
	pod := onePod(t, web)
	if pod.Namespace != "default" || pod.Name != "web-node-1" || pod.Spec.NodeName != "node-1" {
		t.Errorf("pod is %s/%s on %q, want default/web-node-1 on node-1", pod.Namespace, pod.Name, pod.Spec.NodeName)
	}
	if len(pod.UID) != 32 || pod.Annotations[podset.AnnotationHash] != string(pod.UID) {
		t.Errorf("UID %q, hash annotation %q, want the same hash", pod.UID, pod.Annotations[podset.AnnotationHash])
	}
	want := []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}}
	if diff := cmp.Diff(want, pod.Spec.Tolerations); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	if pod.Status.Phase != v1.PodPending {
		t.Errorf("phase %q, want Pending", pod.Status.Phase)
	}
	// A sample of the API's defaults.
	if pod.Spec.RestartPolicy != v1.RestartPolicyAlways || pod.Spec.DNSPolicy != v1.DNSClusterFirst ||
		pod.Spec.TerminationGracePeriodSeconds == nil || *pod.Spec.TerminationGracePeriodSeconds != 30 ||
		pod.Spec.Containers[0].ImagePullPolicy != v1.PullIfNotPresent {
		t.Errorf("the defaults of the API are missing: %+v", pod.Spec)
	}
}

func TestUIDIsOfContentNodeAndPath(t *testing.T) {
	uid := onePod(t, web).UID
	if again := onePod(t, "# a comment\n"+web).UID; again != uid {
		t.Errorf("a comment changes the UID from %s to %s", uid, again)
	}
	asJSON := `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"image":"example.com/web:1","name":"main"}]},"metadata":{"name":"web"}}`
	if again := onePod(t, asJSON).UID; again != uid {
		t.Errorf("the same content as JSON has the UID %s, want %s", again, uid)
	}
	for what, other := range map[string]staticpod.Result{
		"content": staticpod.Decode([]byte(strings.Replace(web, "web:1", "web:2", 1)), origin),
		"node":    staticpod.Decode([]byte(web), staticpod.Origin{Node: "node-2", Path: origin.Path}),
		"path":    staticpod.Decode([]byte(web), staticpod.Origin{Node: origin.Node, Path: "/other"}),
	} {
		if other.Pods[0].UID == uid {
			t.Errorf("another %s has the same UID", what)
		}
	}
	if given := onePod(t, strings.Replace(web, "name: web", "name: web\n  uid: abc-1", 1)); given.UID != "abc-1" {
		t.Errorf("UID %q, want the one that the manifest gives", given.UID)
	}
}

func TestStatusOfAManifestIsIgnored(t *testing.T) {
	pod := onePod(t, web+"status:\n  phase: Running\n  fieldOfTheFuture: 1\n")
	if pod.Status.Phase != v1.PodPending || pod.UID != onePod(t, web).UID {
		t.Errorf("phase %q: the manifest's status has been taken", pod.Status.Phase)
	}
}

func TestNoExecuteTolerationIsForEver(t *testing.T) {
	pod := onePod(t, web+"  tolerations:\n  - operator: Exists\n    effect: NoExecute\n    tolerationSeconds: 5\n")
	if len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0].TolerationSeconds != nil {
		t.Errorf("tolerations %+v, want the one without an end", pod.Spec.Tolerations)
	}
}

func item(name string) string {
	return fmt.Sprintf(
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i"}]}}`,
		name,
	)
}

func TestManifestsOfSeveralPods(t *testing.T) {
	second := strings.Replace(web, "name: web", "name: other", 1)
	for name, manifest := range map[string]string{
		"List":                        `{"apiVersion":"v1","kind":"List","items":[` + item("web") + "," + item("other") + "]}",
		"PodList":                     `{"apiVersion":"v1","kind":"PodList","metadata":{},"items":[` + item("web") + "," + item("other") + "]}",
		"items without a kind":        `{"apiVersion":"v1","kind":"PodList","items":[` + strings.ReplaceAll(item("web")+","+item("other"), `"apiVersion":"v1","kind":"Pod",`, "") + "]}",
		"documents":                   web + "---\n" + second,
		"documents with blank ones":   "---\n# nothing\n---\n" + web + "--- # next\n" + second + "---\n",
		"documents of Windows":        strings.ReplaceAll("---\n"+web+"---\n"+second, "\n", "\r\n"),
		"a list beside a pod":         web + "---\napiVersion: v1\nkind: List\nitems:\n- " + item("other") + "\n",
		"YAML with a byte order mark": "\xef\xbb\xbf" + web + "---\n" + second,
	} {
		t.Run(name, func(t *testing.T) {
			got := staticpod.Decode([]byte(manifest), origin)
			if len(got.Problems) != 0 || got.Incomplete {
				t.Fatalf("problems: %v, want none and got.Incomplete false", got.Problems)
			}
			var names []string
			for _, pod := range got.Pods {
				names = append(names, pod.Name)
			}
			if diff := cmp.Diff([]string{"web-node-1", "other-node-1"}, names); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEachWayInWhichYAMLSeparatesDocuments(t *testing.T) {
	inline := `{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {containers: [{name: main, image: "example.com/web:1"}]}}`
	first, second := fmt.Sprintf(inline, "first"), fmt.Sprintf(inline, "second")
	for name, manifest := range map[string]string{
		"a line of its own":               first + "\n---\n" + second,
		"with a comment":                  first + "\n--- # the second\n" + second,
		"with the document after it":      first + "\n--- " + second,
		"also before the first":           "--- " + first + "\n---\t" + second,
		"the end of a document":           first + "\n...\n" + second,
		"the end and a beginning":         first + "\n...\n--- " + second + "\n...\n",
		"with the line ends of a DOS":     first + "\r\n---\r\n" + second + "\r\n",
		"a text that begins like markers": strings.Replace(first, "example.com/web:1", "---", 1) + "\n---\n" + second,
	} {
		t.Run(name, func(t *testing.T) {
			got := staticpod.Decode([]byte(manifest), origin)
			var names []string
			for _, p := range got.Pods {
				names = append(names, p.Name)
			}
			if diff := cmp.Diff([]string{"first-node-1", "second-node-1"}, names); diff != "" {
				t.Errorf("pods (-want +got):\n%s\nproblems: %v", diff, got.Problems)
			}
		})
	}
}

func TestAnEmptyListIsNoPodsAndNoProblem(t *testing.T) {
	got := staticpod.Decode([]byte("apiVersion: v1\nkind: List\nitems: []\n"), origin)
	if len(got.Pods) != 0 || len(got.Problems) != 0 || got.Incomplete {
		t.Errorf("got %+v, want nothing", got)
	}
}

func TestProblemsNamePodAndField(t *testing.T) {
	with := func(old, new string) string { return strings.Replace(web, old, new, 1) }
	for _, tc := range []struct {
		name, manifest    string
		pod, field, cause string
		incomplete        bool
	}{
		{"empty", "", "", "", "the manifest is empty", true},
		{"only comments", "# nothing\n---\n", "", "", "the manifest is empty", true},
		{"cut off in the middle", web + "  - {", "", "", "line 9", true},
		{"not a document of ours", "just words", "", "", "string and not an object", true},
		{"another kind", with("kind: Pod", "kind: Deployment"), "", "kind", `not "Deployment"`, true},
		{"no kind", with("kind: Pod\n", ""), "", "kind", `not ""`, true},
		{"another version", with("apiVersion: v1", "apiVersion: v2"), "", "apiVersion", `must be "v1"`, true},
		{"repeated key", web + "kind: Pod\n", "", "", "already set", true},
		{"repeated key of JSON", `{"kind":"Pod","kind":"Pod"}`, "", "", "duplicate", true},
		{"line of a second document", web + "---\n" + web + "\tx", "", "", "line 18", true},
		{"no name", with("name: web", "labels: {}"), "", "metadata.name", "required", true},
		{"unknown field", with("image:", "imag:"), "default/web-node-1", "spec.containers[0].imag", "unknown field", false},
		{"wrong type", with("spec:", "spec:\n  hostNetwork: 3"), "default/web-node-1", "spec.hostNetwork", "true or false", false},
		{"missing image", with("image: example.com/web:1", "command: [x]"), "default/web-node-1", "spec.containers[0].image", "Required", false},
		{"bad name", with("name: web", "name: We_b"), "default/We_b-node-1", "metadata.name", "Invalid", false},
		{"bad UID", with("name: web", "name: web\n  uid: source/file"), "default/web-node-1", "metadata.uid", "letters, digits", false},
		{"namespace", with("name: web", "name: web\n  namespace: kube-system\n  uid: ../x"), "kube-system/web-node-1", "metadata.uid", "letters", false},
		{
			"bad item of a list", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node"}]}`,
			"", "items[0].kind", "must be Pod", true,
		},
		{"items of another type", "apiVersion: v1\nkind: List\nitems: 3\n", "", "items", "list of objects", true},
		{"misspelled items", "apiVersion: v1\nkind: List\nitem: []\n", "", "item", "no such field", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := staticpod.Decode([]byte(tc.manifest), origin)
			if len(got.Problems) == 0 {
				t.Fatalf("no problem; pods %v", got.Pods)
			}
			p := got.Problems[0]
			if p.Pod != tc.pod || p.Field != tc.field || !strings.Contains(p.Message, tc.cause) ||
				got.Incomplete != tc.incomplete {
				t.Errorf("got pod %q field %q message %q incomplete %v,\nwant pod %q field %q message with %q incomplete %v",
					p.Pod, p.Field, p.Message, got.Incomplete, tc.pod, tc.field, tc.cause, tc.incomplete)
			}
		})
	}
}

func TestABadPodHidesNoGoodOne(t *testing.T) {
	bad := strings.NewReplacer("name: web", "name: bad", "image:", "imag:").Replace(web)
	got := staticpod.Decode([]byte(bad+"---\n"+web), origin)
	if len(got.Pods) != 1 || got.Pods[0].Name != "web-node-1" {
		t.Errorf("pods %v, want the good one", got.Pods)
	}
	if len(got.Problems) != 1 || got.Problems[0].Pod != "default/bad-node-1" || got.Incomplete {
		t.Errorf("problems %v incomplete %v, want one, of the bad pod", got.Problems, got.Incomplete)
	}
}

func TestReferencesToTheAPIAreRefusedByField(t *testing.T) {
	volume := func(source string) string { return web + "  volumes:\n  - name: v\n    " + source + "\n" }
	for want, manifest := range map[string]string{
		"spec.serviceAccountName":                    web + "  serviceAccountName: x\n",
		"spec.serviceAccount":                        web + "  serviceAccount: x\n",
		"spec.imagePullSecrets":                      web + "  imagePullSecrets: [{name: x}]\n",
		"spec.resourceClaims":                        web + "  resourceClaims: [{name: x, resourceClaimName: z}]\n",
		"spec.containers[0].envFrom[0].secretRef":    web + "    envFrom: [{secretRef: {name: x}}]\n",
		"spec.containers[0].envFrom[0].configMapRef": web + "    envFrom: [{configMapRef: {name: x}}]\n",
		"spec.containers[0].env[0].valueFrom.secretKeyRef": web +
			"    env: [{name: A, valueFrom: {secretKeyRef: {name: x, key: k}}}]\n",
		"spec.containers[0].env[0].valueFrom.configMapKeyRef": web +
			"    env: [{name: A, valueFrom: {configMapKeyRef: {name: x, key: k}}}]\n",
		"spec.initContainers[0].envFrom[0].secretRef": web +
			"  initContainers: [{name: i, image: i, envFrom: [{secretRef: {name: x}}]}]\n",
		"spec.volumes[0].secret":                volume("secret: {secretName: x}"),
		"spec.volumes[0].configMap":             volume("configMap: {name: x}"),
		"spec.volumes[0].persistentVolumeClaim": volume("persistentVolumeClaim: {claimName: x}"),
		"spec.volumes[0].csi":                   volume("csi: {driver: x}"),
		"spec.volumes[0].cephfs.secretRef":      volume("cephfs: {monitors: [x], secretRef: {name: x}}"),
		"spec.volumes[0].projected.sources[0].serviceAccountToken": volume(
			"projected: {sources: [{serviceAccountToken: {path: token}}]}"),
		"spec.volumes[0].projected.sources[0].secret":    volume("projected: {sources: [{secret: {name: x}}]}"),
		"spec.volumes[0].projected.sources[0].configMap": volume("projected: {sources: [{configMap: {name: x}}]}"),
	} {
		t.Run(want, func(t *testing.T) {
			got := staticpod.Decode([]byte(manifest), origin)
			if len(got.Pods) != 0 || len(got.Problems) == 0 {
				t.Fatalf("pods %d, problems %v, want a refusal", len(got.Pods), got.Problems)
			}
			p := got.Problems[0]
			if p.Field != want || !strings.Contains(p.Message, "a static pod must not use") {
				t.Errorf("got %s, want a refusal of %s", p, want)
			}
		})
	}
}

func TestVolumesThatNeedNoAPIAreAllowed(t *testing.T) {
	onePod(t, web+`  volumes:
  - {name: a, emptyDir: {}}
  - {name: b, hostPath: {path: /x}}
  - {name: c, downwardAPI: {items: [{path: file, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: d, projected: {sources: [{downwardAPI: {items: [{path: file, fieldRef: {fieldPath: metadata.name}}]}}]}}
`)
}

func TestProblemsAreBounded(t *testing.T) {
	got := staticpod.Decode([]byte(strings.Repeat("kind: x\n---\n", 500)), origin)
	if len(got.Problems) != 21 || !strings.Contains(got.Problems[20].Message, "480 more") {
		t.Errorf(
			"%d problems, the last %q; want 20 and a line that counts the rest",
			len(got.Problems),
			got.Problems[len(got.Problems)-1].Message,
		)
	}
}
