package staticpod_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// FuzzDecode holds that no manifest makes the decoder panic, that what it says is good is fit to be run and to be sent,
// and that it says the same each time.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", web, web + "---\n" + web, web + "  volumes:\n  - name: v\n    secret: {secretName: x}\n",
		`{"apiVersion":"v1","kind":"List","items":[` + item("a") + "," + item("b") + "]}",
		item("a"), `{"apiVersion":"v1","kind":"PodList","items":[{}, null, 3]}`, "a: &a [*a]", "---\n---\n...\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: x, uid: u, deletionTimestamp: 2020-01-01T00:00:00Z}\nspec: {containers: [{name: a, image: b, ports: [{containerPort: 80}], resources: {limits: {cpu: 1e3, memory: 1Gi}}, livenessProbe: {httpGet: {port: 80}}}]}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, manifest []byte) {
		got := staticpod.Decode(manifest, origin)
		if len(got.Pods) == 0 && len(got.Problems) == 0 && got.Incomplete {
			t.Fatal("incomplete, and no problem says why")
		}
		for _, pod := range got.Pods {
			if pod.Name == "" || pod.Namespace == "" || pod.UID == "" || pod.Spec.NodeName != origin.Node {
				t.Fatalf("pod %s/%s of UID %q on %q is called good", pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName)
			}
			if pod.Annotations[podset.AnnotationSource] != "" || pod.Annotations[podset.AnnotationMirror] != "" {
				t.Fatalf("forged annotations are kept: %v", pod.Annotations)
			}
			if _, err := pod.Marshal(); err != nil {
				t.Fatalf("a pod that cannot be sent is called good: %v", err)
			}
		}
		again := staticpod.Decode(manifest, origin)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("decoding twice differs:\n%s", diff)
		}
	})
}
