package apiobject_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
)

func TestAnObjectIsMadeAsAnAPIServerDoes(t *testing.T) {
	o := &apiobject.Object{Secret: &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:            "login",
			UID:             "u",
			ResourceVersion: "7",
			Labels:          map[string]string{"a": "b"},
			Annotations: map[string]string{
				v1.LastAppliedConfigAnnotation: `{"data":{"both":"eA=="}}`,
				"mine":                         "1",
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		Data: map[string][]byte{
			"data": []byte("1"),
			"both": []byte("2"),
		},
		StringData: map[string]string{"text": "3", "both": "4"},
	}}
	if errs := o.Prepare(); len(errs) > 0 {
		t.Fatalf("Prepare() = %v, want no error", errs)
	}
	want := &v1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "default",
			Name:        "login",
			Labels:      map[string]string{"a": "b"},
			Annotations: map[string]string{"mine": "1"},
		},
		Type: v1.SecretTypeOpaque,
		Data: map[string][]byte{"data": []byte("1"), "text": []byte("3"), "both": []byte("4")},
	}
	if diff := cmp.Diff(want, o.Secret); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if o.Key().String() != "secret default/login" || o.Key().Path() != "Secret/default/login" || o.Sizes()["both"] != 1 {
		t.Errorf("key %s, path %s, sizes %v, want %q, %q and both 1",
			o.Key(), o.Key().Path(), o.Sizes(), "secret default/login", "Secret/default/login")
	}
}

func TestProblemsAreReportedByFieldAndWithoutValues(t *testing.T) {
	const value = "hunter2"
	fixed := true
	secret := func(kind v1.SecretType, data ...string) *apiobject.Object {
		s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Type: kind, StringData: map[string]string{}}
		for _, key := range data {
			s.StringData[key] = value
		}
		return &apiobject.Object{Secret: s}
	}
	immutable := secret("", "k")
	immutable.Secret.Immutable = &fixed
	if errs := immutable.Prepare(); len(errs) > 0 || !immutable.Immutable() {
		t.Fatalf("Prepare() = %v, Immutable() = %t, want no error and true", errs, immutable.Immutable())
	}
	changed := secret("", "k", "l")
	if errs := changed.Prepare(); len(errs) > 0 {
		t.Fatalf("Prepare() = %v, want no error", errs)
	}
	other := secret("Other", "k")
	if errs := other.Prepare(); len(errs) > 0 {
		t.Fatalf("Prepare() = %v, want no error", errs)
	}
	large := &apiobject.Object{
		ConfigMap: &v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Data:       map[string]string{"k": strings.Repeat("x", 1<<20+1)},
		},
	}
	for want, errs := range map[string]fmt.Stringer{
		"data[a/b]":               texts(secret("", "a/b").Prepare().ToAggregate()),
		"data[.dockerconfigjson]": texts(secret(v1.SecretTypeDockerConfigJson, ".dockerconfigjson").Prepare().ToAggregate()),
		"data[tls.key]":           texts(secret(v1.SecretTypeTLS, "tls.crt").Prepare().ToAggregate()),
		"Too long":                texts(large.Prepare().ToAggregate()),
		"immutable: Forbidden":    texts(changed.CheckUpdate(immutable).ToAggregate()),
		"data: Forbidden":         texts(changed.CheckUpdate(immutable).ToAggregate()),
		"type: Invalid value":     texts(other.CheckUpdate(changed).ToAggregate()),
	} {
		if text := errs.String(); !strings.Contains(text, want) || strings.Contains(text, value) ||
			strings.Contains(text, "'h'") {
			t.Errorf("got %s, want %s", text, want)
		}
	}
	if errs := immutable.CheckUpdate(immutable); len(errs) > 0 {
		t.Errorf("one that stays as it is: %v, want none", errs)
	}
}

type textOf struct{ err error }

func (t textOf) String() string { return fmt.Sprint(t.err) }

func texts(err error) fmt.Stringer { return textOf{err} }

// No text form of an object contains its data.
func TestAnObjectIsPrintedWithoutItsData(t *testing.T) {
	o := &apiobject.Object{
		Secret: &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"},
			Data:       map[string][]byte{"k": []byte("hunter2")},
		},
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("an object", "object", o)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("an object", "object", o)
	for _, text := range []string{fmt.Sprint(o), fmt.Sprintf("%+v %#v %s %q %x", o, o, o, o, o), log.String()} {
		if !strings.Contains(text, "secret a/s") || strings.Contains(text, "hunter2") || strings.Contains(text, "104 117") ||
			strings.Contains(text, "aHVudGVyMg") {
			t.Errorf("text = %s, want text with %q, without %q, without %q and without %q",
				text, "secret a/s", "hunter2", "104 117", "aHVudGVyMg")
		}
	}
	if _, err := apiobject.Unmarshal(
		apiobject.Secret,
		[]byte("hunter2"),
	); err == nil ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("bytes that are none: %v", err)
	}
	if _, err := apiobject.Unmarshal(
		"Pod",
		nil,
	); err == nil ||
		err.Error() != `kind: must be ConfigMap, Secret, PersistentVolumeClaim, StorageClass or CSIDriver, not "Pod"` {
		t.Errorf("another kind: %v", err)
	}
}

// Preparing a prepared object, also after it was sent, changes nothing. The order of the objects does not matter for
// the choice of those that are left out.
func TestPreparedObjectsStayAsTheyAre(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		keys := rapid.MapOf(rapid.StringMatching(`[-._a-z]{1,5}`), rapid.SliceOf(rapid.Byte()))
		o := &apiobject.Object{Secret: &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name:      rapid.StringMatching(`[a-z]{0,3}`).Draw(r, "name"),
				Namespace: rapid.SampledFrom([]string{"", "a"}).Draw(r, "namespace"),
			},
			Data: keys.Draw(
				r,
				"data",
			),
			StringData: rapid.MapOf(rapid.StringMatching(`[a-z]{1,3}`), rapid.String()).Draw(r, "text"),
		}}
		if len(o.Prepare()) > 0 {
			return
		}
		data, err := o.Marshal()
		if err != nil {
			r.Fatal(err)
		}
		again, err := apiobject.Unmarshal(o.Kind(), data)
		if err != nil {
			r.Fatal(err)
		}
		if errs := again.Prepare(); len(errs) > 0 {
			r.Fatalf("what is good is not good again: %v", errs)
		}
		if twice, err := again.Marshal(); err != nil || !bytes.Equal(data, twice) {
			r.Fatalf("it is another object, %v", err)
		}
		kept, repeated := apiobject.Filter([]*apiobject.Object{o, again})
		if len(kept) != 1 || kept[0] != o || len(repeated) != 1 || repeated[0] != (apiobject.Repeated{Index: 1, By: 0}) {
			r.Fatalf("kept %v, left out %v", kept, repeated)
		}
	})
}
