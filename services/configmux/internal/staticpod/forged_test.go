package staticpod_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// withAnnotations puts lines of annotations into the pod web.
func withAnnotations(lines string) string {
	return strings.Replace(web, "name: web", "name: web\n  annotations:\n"+lines, 1)
}

const forgedLines = `    kubernetes.io/config.source: api
    kubernetes.io/config.mirror: x
    kubernetes.io/config.seen: x
    kubernetes.io/config.hash: x
    quartet.dev/traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
`

// ignored decodes a manifest of one good pod, and returns that and what of it was ignored, as "pod field message".
func ignored(t *testing.T, manifest string) (*v1.Pod, []string) {
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
	var out []string
	for _, p := range got.Ignored {
		out = append(out, p.Pod+" "+p.Field+" "+p.Message)
	}
	return got.Pods[0], out
}

func TestForgedAnnotationsAreDroppedAndReportedAndThePodCounts(t *testing.T) {
	pod, reported := ignored(t, withAnnotations(forgedLines+"    mine: kept\n"))
	want := map[string]string{"mine": "kept", podset.AnnotationHash: string(pod.UID)}
	if diff := cmp.Diff(want, pod.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	const message = "only the node's agent sets this annotation: it is ignored, and the rest of the pod counts: remove it"
	if diff := cmp.Diff([]string{
		"default/web-node-1 metadata.annotations[kubernetes.io/config.hash] line 9: " + message,
		"default/web-node-1 metadata.annotations[kubernetes.io/config.mirror] line 7: " + message,
		"default/web-node-1 metadata.annotations[kubernetes.io/config.seen] line 8: " + message,
		"default/web-node-1 metadata.annotations[kubernetes.io/config.source] line 6: " + message,
		"default/web-node-1 metadata.annotations[quartet.dev/traceparent] line 10: " + message,
	}, reported); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

// The UID depends on the manifest, so a forged time in an annotation would give another pod each time.
func TestForgedAnnotationsMakeNoOtherPod(t *testing.T) {
	plain := onePod(t, web)
	for name, lines := range map[string]string{
		"all of them": forgedLines, "of another type": "    kubernetes.io/config.hash: {a: 1}\n    kubernetes.io/config.seen: 3\n",
	} {
		if pod, _ := ignored(t, withAnnotations(lines)); !cmp.Equal(plain, pod) {
			t.Errorf("%s (-without +with):\n%s", name, cmp.Diff(plain, pod))
		}
	}
	mine := onePod(t, withAnnotations("    mine: kept\n"))
	if pod, _ := ignored(t, withAnnotations("    mine: kept\n"+forgedLines)); !cmp.Equal(mine, pod) {
		t.Errorf("beside another (-without +with):\n%s", cmp.Diff(mine, pod))
	}
}

// Users have manifests that `kubectl get pod -o yaml` has printed for the mirror pod of a running static pod.
func TestASavedMirrorPodStillRuns(t *testing.T) {
	pod, reported := ignored(t, `apiVersion: v1
kind: Pod
metadata:
  annotations:
    kubernetes.io/config.hash: 7d1c8f0b2a6e4d35a1f0c9b8e7d6a5f4
    kubernetes.io/config.mirror: 7d1c8f0b2a6e4d35a1f0c9b8e7d6a5f4
    kubernetes.io/config.seen: "2026-05-01T12:00:00.123456789Z"
    kubernetes.io/config.source: file
  creationTimestamp: "2026-05-01T12:00:01Z"
  generation: 1
  name: web
  namespace: kube-system
  ownerReferences:
  - {apiVersion: v1, controller: true, kind: Node, name: node-9, uid: 5b3f4f2e-0e5c-4c55-9d39-7a6f5d1d8b11}
  resourceVersion: "412"
  uid: 0f9a3c1e-6a55-4f0e-8a39-4b7b6b7f2d10
spec:
  containers:
  - {image: example.com/web:1, imagePullPolicy: IfNotPresent, name: main, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  hostNetwork: true
  nodeName: node-9
  preemptionPolicy: PreemptLowerPriority
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
  tolerations:
  - {effect: NoExecute, operator: Exists}
status: {phase: Running, podIP: 198.51.100.7}
`)
	if pod.Spec.NodeName != "node-1" || pod.Annotations[podset.AnnotationHash] != string(pod.UID) ||
		len(pod.Annotations) != 1 {
		t.Errorf("on %s with %v, want %q, pod.Annotations[podset.AnnotationHash] %v and exactly one",
			pod.Spec.NodeName, pod.Annotations, "node-1", string(pod.UID))
	}
	if len(reported) != 4 {
		t.Errorf("reported %q, want the four annotations", reported)
	}
}

// An ignored annotation of a pod that is left out is not reported.
func TestWhatIsIgnoredIsReportedOfGoodPodsOnly(t *testing.T) {
	got := staticpod.Decode([]byte(strings.Replace(withAnnotations(forgedLines), "image:", "imag:", 1)), origin)
	if len(got.Pods) != 0 || len(got.Problems) == 0 || len(got.Ignored) != 0 {
		t.Errorf("pods %v, problems %v, ignored %v", got.Pods, got.Problems, got.Ignored)
	}
}

func TestReportsOfWhatIsIgnoredAreBounded(t *testing.T) {
	var lines strings.Builder
	for i := range 500 {
		fmt.Fprintf(&lines, "    quartet.dev/a%d: x\n", i)
	}
	_, reported := ignored(t, withAnnotations(lines.String()))
	if len(reported) != 21 || !strings.Contains(reported[20], "480 more annotations") {
		t.Errorf("%d reports, the last %q; want 20 and one that counts the rest", len(reported), reported[len(reported)-1])
	}
}
