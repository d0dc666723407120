package podset_test

import (
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/internal/podset"
)

// Specs with the same encoding count as equal, so the encoding must contain every field of a spec.
func TestEverythingInASpecIsEncoded(t *testing.T) {
	// A quantity is encoded by its value, and a time in seconds, which is the precision of manifests and of the API.
	seen := map[reflect.Type]bool{reflect.TypeFor[resource.Quantity](): true, reflect.TypeFor[metav1.Time](): true}
	var walk func(reflect.Type)
	walk = func(at reflect.Type) {
		switch at.Kind() { //nolint:exhaustive // the other kinds hold no fields
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(at.Elem())
		case reflect.Struct:
			if seen[at] {
				return
			}
			seen[at] = true
			for i := range at.NumField() {
				field := at.Field(i)
				if tag := field.Tag.Get("protobuf"); tag == "" || tag == "-" {
					t.Errorf("%s.%s is not in the encoding", at, field.Name)
				}
				walk(field.Type)
			}
		}
	}
	walk(reflect.TypeFor[v1.PodSpec]())
	if len(seen) < 50 {
		t.Errorf("only %d types are part of a spec, want all of the API's", len(seen))
	}
}

// Two specs differ even if the changes of two fields keep the encoded size.
func TestSpecsOfTheSameSizeAreCompared(t *testing.T) {
	with := func(image string) *v1.Pod {
		return pod("1", func(p *v1.Pod) { p.Spec.Containers[0].Image = image })
	}
	if got := podset.Compare(with("image:1"), with("image:2")); got != podset.Update {
		t.Errorf("Compare = %s, want UPDATE", got)
	}
}
