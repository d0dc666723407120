package filesource

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// FuzzRestore checks that no content of the checkpoint makes its reader panic, and that accepted content can be stored
// again.
func FuzzRestore(f *testing.F) {
	seals := sealing.NewKeyring(filepath.Join(f.TempDir(), "secrets.key"), os.Geteuid())
	good, err := encode("node", map[string]staticpod.Held{"/a.yaml": {
		Pods: []*v1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}},
			Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}},
		}},
		Objects: []*apiobject.Object{
			{ConfigMap: &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}},
			{
				Secret: &v1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"},
					Data:       map[string][]byte{"k": []byte("v")},
				},
			},
		},
	}}, seals.Seal)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(good), "", "{", "null", `{"node":"node","manifests":{"x":["AAAA"]}}`, `{"node":"node","manifests":{"x":[null]}}`,
		`{"node":"node","objects":{"x":[{"kind":"Secret"},{"kind":"ConfigMap"},{"kind":"Secret","sealed":{"key":"a","data":"AA=="}}]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "checkpoint.json")
		must(t, os.WriteFile(path, content, 0o600))
		restored, err := restore(path, "node", seals)
		if err != nil {
			return
		}
		if _, err := encode("node", restored, seals.Seal); err != nil {
			t.Errorf("what was taken cannot be kept: %v", err)
		}
	})
}
