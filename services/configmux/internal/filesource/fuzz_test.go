package filesource

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzRestore holds that no content of the checkpoint makes its reader panic, and that what it takes can be kept again.
func FuzzRestore(f *testing.F) {
	good, err := encode("node", map[string][]*v1.Pod{"/a.yaml": {{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(good), "", "{", "null", `{"node":"node","manifests":{"x":["AAAA"]}}`, `{"node":"node","manifests":{"x":[null]}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "checkpoint.json")
		must(t, os.WriteFile(path, content, 0o600))
		restored, _, err := restore(path, "node")
		if err != nil {
			return
		}
		if _, err := encode("node", restored); err != nil {
			t.Errorf("what was taken cannot be kept: %v", err)
		}
	})
}
