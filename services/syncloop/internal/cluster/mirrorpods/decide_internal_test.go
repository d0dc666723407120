package mirrorpods

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/podset"
)

func TestTheMirrorPodOfAChangedPodStaysWhileThatEnds(t *testing.T) {
	pod := func(key, hash string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{key: hash}}}
	}
	changed, old, current := pod(podset.AnnotationHash, "new"), pod(podset.AnnotationMirror, "old"), pod(podset.AnnotationMirror, "new")
	deleted := current.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{}
	for name, test := range map[string]struct {
		mirror *v1.Pod
		ending bool
		want   action
	}{
		"the old pod ends":                   {old, true, keep},
		"the old pod has ended":              {old, false, remove},
		"it has the right one":               {current, true, keep},
		"somebody has deleted the right one": {deleted, true, remove},
		"it has none":                        {nil, true, create},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decide(facts{static: changed, mirror: test.mirror, node: "n", known: true, complete: true, ending: test.ending}); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
